"""`python -m runners NAME`, with the folder above this one on PYTHONPATH: the process of one system."""

import os
import sys

from .protocol import serve

if __name__ == "__main__":
    serve(sys.argv[1])
    os._exit(0)  # a system's threads may run forever, and nobody waits for them
