"""Brokers that die under a service that streams, and replicas in a storm. Slow: `make test-slow`."""

import threading
import time
from contextlib import ExitStack

import pytest
from confluent_kafka.admin import AdminClient

from stream_ocpdl import Problem
from stream_ocpdl.errors import BrokerError
from stream_ocpdl.ocpdl.learner import warm_up
from stream_ocpdl.verification import Trial, verify
from tests.broker.cluster import Cluster
from tests.test_election import Life, Model, eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module", autouse=True)
def compiled():
    """The kernels of these models are on the disk: to compile them takes longer than a replica is waited for."""
    warm_up(Problem(shape=(4, 3), rank=2, batch_size=4))


class Feed:
    """Tensors for a model, on and on."""

    def __init__(self, model):
        self._model, self._ending = model, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        while not self._ending.wait(0.2):
            self._model.feed(10)

    def end(self):
        self._ending.set()
        self._thread.join()


def leader(servers, topic):
    return AdminClient({"bootstrap.servers": servers}).list_topics(topic, timeout=30).topics[topic].partitions[0].leader


def test_the_leader_of_each_topic_is_killed(installed, tmp_path):
    """Of each topic in turn, those of the broker itself included, while two replicas stream: nothing is lost."""
    with Cluster.start(nodes=3) as cluster:
        model = Model(cluster.bootstrap_servers, shards=2, kafka={"extra": {"session.timeout.ms": 6000}})
        model.create()
        topics = model.settings.topics()
        with ExitStack() as stack:
            lives = [stack.enter_context(Life(model, tmp_path, name)) for name in ("first", "second")]
            assert eventually(lambda: sum(life.count("^ready") for life in lives) >= 2, 60)
            feed = Feed(model)
            internal = ("__consumer_offsets", "__transaction_state")
            for topic in (topics.input, topics.journal, topics.codes, topics.state, topics.snapshots, *internal):
                node = leader(cluster.bootstrap_servers, topic)
                cluster.kill(node)
                time.sleep(5)
                cluster.restart(node)
                time.sleep(3)
                for life in [life for life in lives if life.process.poll() is not None]:
                    assert life.process.returncode == BrokerError.exit_code, life.text  # a call into the client hung
                    lives.remove(life)
                    lives.append(stack.enter_context(Life(model, tmp_path, f"after-{topic}")))
            feed.end()
            assert eventually(model.learned, 120)
            for life in lives:
                life.process.terminate()
                assert life.process.wait(60) == 0, life.text
        model.check()
        assert model.fed > 100


def test_the_broker_is_away(installed, tmp_path):
    """For a while: it is said, and when it is back; the stream goes on. For longer than there is patience: exit 6."""
    with Cluster.start() as cluster:
        model = Model(cluster.bootstrap_servers, kafka={"patience_s": 30.0, "extra": {"session.timeout.ms": 3000}})
        model.create()
        with Life(model, tmp_path, "life") as life:
            life.has("^ready")
            feed = Feed(model)
            assert eventually(lambda: model.fed > 20)
            cluster.kill(1)
            time.sleep(6)
            cluster.restart(1)
            feed.end()
            assert eventually(model.learned, 60), life.text
            assert life.count(r"for \d+ s: .*trying again") >= 1, life.text
            assert life.count("works again after") >= 1, life.text
            assert len(life.lines) < 100
            cluster.kill(1)
            assert life.process.wait(120) == BrokerError.exit_code == 6, life.text
            cluster.restart(1)
        with Life(model, tmp_path, "next") as life:
            life.has("^ready")
            life.process.terminate()
            assert life.process.wait(30) == 0
        model.check()


@pytest.mark.parametrize("canonical", [True, False], ids=["canonical", "linger"])
def test_a_storm(broker, canonical):
    """Replicas come and go, and are frozen: the promises hold for every shard, and takeovers happen warm and cold."""
    trial = Trial(broker, kills=0, partitions=4, shards=2, replicas=3, storm=40, zombies=2, session_ms=1500)
    verdict = verify(Trial(**{name: getattr(trial, name) for name in trial.__slots__} | {"canonical": canonical}))

    assert verdict.failures == []
    assert verdict.ends["frozen"] == 2
    assert verdict.ends["killed"] > 0
    assert verdict.takeovers["cold"]
