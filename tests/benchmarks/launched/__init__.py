"""What `tests.benchmarks.ranks` measures: one job on several ranks, by the workbench and by its peers."""
