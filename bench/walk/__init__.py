"""A few requests through the engine, every iteration noted: `python -m orcastream.bench.walk`."""
