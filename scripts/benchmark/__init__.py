"""The parts that benchmarks share: cells and tables, rivals, profiles, ranks, history."""
