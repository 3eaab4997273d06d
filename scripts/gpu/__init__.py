"""The parts of gpu_bench.py. All but whole models use `fold` and `runtime` alone of the package."""
