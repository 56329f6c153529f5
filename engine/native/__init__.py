"""Compiled CPU operators: C++ sources without dependencies, built once per instruction set, loaded with ctypes."""
