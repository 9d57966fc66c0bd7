"""The front door: `stream-ocpdl`, or `python -m stream_ocpdl`."""

from stream_ocpdl.cli import main

if __name__ == "__main__":
    main()
