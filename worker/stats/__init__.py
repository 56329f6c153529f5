"""Engine statistics, published while somebody watches."""
