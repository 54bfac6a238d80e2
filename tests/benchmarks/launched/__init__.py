"""What `tests.benchmarks.rank_costs` measures: one job on several ranks, by the workbench and by its peers."""
