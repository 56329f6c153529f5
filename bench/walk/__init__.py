"""A few requests through the engine, with every iteration recorded: `python -m orcastream.bench.walk`."""
