"""`python -m runners NAME`, with the folder above this one on PYTHONPATH: the process of one system."""

import sys

from .protocol import serve

if __name__ == "__main__":
    serve(sys.argv[1])
