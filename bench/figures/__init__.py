"""Results of a benchmark: times of a request, figures of a run, medians of several runs, tables and plots."""
