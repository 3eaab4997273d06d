"""The parts of gpu_bench.py. Parts 1 to 5 import `fold` and `runtime` alone: numpy and onnx."""
