"""The paper's clips in the small: the same numbers twice, what an atom is, also through a broker."""

import json
import sys

import numpy as np
import pytest

from stream_ocpdl.experiments import video
from stream_ocpdl.ocpdl.learner import Learner
from tests.benching import invoke


def test_clips_are_learned_twice_the_same():
    """But for what it took. The dictionary is better than the mean frame, and its atoms are of frames and of a clip."""
    first, second = (video.run(None, True, None, lambda _: None) for _ in range(2))
    sizes, costs = video.QUICK, [found.body.pop("cost") for found in (first, second)]

    assert first.body == second.body
    assert first.bits == second.bits
    assert np.array_equal(first.pictures, second.pictures)
    assert np.array_equal(first.courses, second.courses)
    assert first.pictures.shape == (sizes.rank, sizes.side, sizes.side, 3)
    assert first.courses.shape == (sizes.rank, sizes.length)
    assert len(first.body["before"]) == sizes.clips
    assert first.body["error"] < first.body["mean"]
    assert all(cost["peak_bytes"] is None or cost["peak_bytes"] > 1e7 for cost in costs)


def test_fewer_clips_are_the_first_ones():
    """So that those which go through a broker are those that were learned here."""
    frames, _ = video.frames_of(None, True)

    assert video.starts(frames, video.QUICK, 3) == video.starts(frames, video.QUICK, 200)[:3]
    assert max(video.starts(frames, video.QUICK, 2000)) == len(frames) - video.QUICK.length


def test_a_spot_with_its_own_course_is_an_atom():
    """Two spots that take turns on a grey ground: each has an atom that is red there alone, and at its times."""
    frames = np.full((64, 12, 12, 3), 40, np.uint8)
    for t in range(64):
        y = 2 if t % 16 < 8 else 8
        frames[t, y : y + 2, y : y + 2] = (240, 40, 40)
    layout, problem = video.problem_of(frames, video.Sizes(16, 3))
    learner = Learner(problem, in_place=True)
    for clip in video.clips_of(frames, [0, 16, 32, 48] * 5, 16):
        learner.step(layout.fold(clip).astype(np.float32))
    error, _ = video.represented(learner, layout, frames, 16)
    red = learner.state.loadings[1].T.reshape(3, 12, 12, 3)[..., 0]
    ground = red[:, 5:7].mean(axis=(1, 2))
    over = {
        (y, bool(course[:8].sum() > course[8:].sum()))
        for picture, level, course in zip(red, ground, learner.state.loadings[0].T, strict=True)
        for y in (2, 8)
        if picture[y, y] > 3 * level and picture[y, y] > 3 * picture[10 - y, 10 - y]
    }

    assert over == {(2, True), (8, False)}
    assert error < 0.05
    assert video.mean_error(frames, 16) == pytest.approx((8 * 100**2 / (428 * 40**2 + 4 * 240**2)) ** 0.5)


def test_the_mean_frame_has_a_factor_for_each_clip():
    """A picture that only gets brighter from one clip to the next is all of it; one that moves is not."""
    still = np.random.default_rng(0).integers(1, 60, (6, 5, 3))
    brighter = [(still * (1 + t // 4)).astype(np.uint8) for t in range(16)]

    assert video.mean_error(brighter, 4) < 1e-7
    assert video.mean_error([np.roll(frame, t, axis=1) for t, frame in enumerate(brighter)], 4) > 0.3


def test_a_video_is_read(tmp_path):
    """Frame by frame in its colours, by its own name as in a folder; one that is cut short is refused in a line."""
    av = pytest.importorskip("av")
    path, pictures = tmp_path / "media" / video.VIDEO, np.repeat(video.drawn(2, 32), 30, axis=0)
    path.parent.mkdir()
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=25, width=32, height=32, pix_fmt="yuv420p", bit_rate=4_000_000)
        for picture in pictures:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")))
        container.mux(stream.encode())
    frames, source = video.frames_of(tmp_path)

    assert source == video.VIDEO
    assert np.array(frames).shape == pictures.shape
    assert np.abs(np.array(frames, float) - pictures).mean() < 8
    assert len(video.frames_of(path)[0]) == len(frames)
    path.write_bytes(path.read_bytes()[:500])
    result = invoke("video", "--data", path)
    assert result.exit_code == 3, result.output
    assert len(result.stderr.splitlines()) == 1


def test_what_reads_videos_is_said(tmp_path, monkeypatch):
    """Where it is not installed; a stand-in needs nothing."""
    (tmp_path / video.VIDEO).write_bytes(b"anything")
    monkeypatch.setitem(sys.modules, "av", None)
    result = invoke("video", "--data", tmp_path)

    assert result.exit_code == 2, result.output
    assert "pip install 'stream-ocpdl[bench]'" in result.stderr
    assert invoke("video", "--quick", "--clips", 2, "--data", tmp_path).exit_code == 0


@pytest.mark.broker
def test_clips_go_through_kafka_in_pieces(broker, monkeypatch):
    """The same bits again, of messages that are larger than a record."""
    monkeypatch.setattr(video, "QUICK", video.Sizes(40, 3, 4, 80, 64))
    result = invoke("video", "--quick", "--through-kafka", broker, "--json")

    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)["kafka"]
    assert found["clips"] == 4
    assert found["same_bits"]
    assert found["pieces"] == 3
