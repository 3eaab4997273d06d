"""A fake of the few functions of `pynvml` that are used, with the names and constants of NVML.

There is no GPU behind it: what real devices answer is not tested with it.
"""

# ruff: noqa: N802, N815 - NVML chose the names

from types import ModuleType

REASONS = {
    "None": 0,
    "GpuIdle": 1,
    "ApplicationsClocksSetting": 2,
    "UserDefinedClocks": 2,
    "SwPowerCap": 4,
    "HwSlowdown": 8,
    "HwThermalSlowdown": 0x40,
    "All": 0x4F,
}


class FakeNvml(ModuleType):
    NVML_CLOCK_SM, NVML_CLOCK_MEM = 1, 2

    class NVMLError(Exception):
        pass

    def __init__(self, reasons=0, lacks=(), initial=""):
        super().__init__("pynvml")
        self.bits, self.lacks, self.initial = reasons, lacks, initial
        self.indices = []
        self.mhz = 1980
        for name, bit in REASONS.items():
            setattr(self, f"nvmlClocksThrottleReason{name}", bit)

    def answer(self, question, value):
        if question in self.lacks:
            raise self.NVMLError("Not Supported")
        return value

    def nvmlInit(self):
        if self.initial:
            raise self.NVMLError(self.initial)

    def nvmlDeviceGetHandleByIndex(self, index):
        self.indices.append(index)
        return "device"

    nvmlDeviceGetHandleByUUID = nvmlDeviceGetHandleByIndex

    def nvmlSystemGetDriverVersion(self):
        return self.answer("driver", "580.65.06")

    def nvmlSystemGetCudaDriverVersion_v2(self):
        return self.answer("cuda", 12080)

    def nvmlDeviceGetName(self, handle):
        return self.answer("name", "Fake GPU")

    def nvmlDeviceGetClockInfo(self, handle, kind):
        self.mhz -= 15 * (kind == self.NVML_CLOCK_SM)
        return self.answer("clock", self.mhz if kind == self.NVML_CLOCK_SM else 3201)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle):
        return self.answer("reasons", self.bits)
