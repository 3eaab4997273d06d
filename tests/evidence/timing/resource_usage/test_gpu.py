"""Memory and energy of a model on a GPU; the device is a fake, and sessions run on the CPU."""

from types import SimpleNamespace

import pytest

from widthfold_onnx.evidence.timing import resource_usage
from widthfold_onnx.options import Provider, RuntimeOptions
from widthfold_onnx.runtime.provider_traits import Level
from widthfold_onnx.runtime.settings import Setting


@pytest.mark.parametrize("tells", [True, False])
def test_energy_is_that_of_a_run_and_memory_what_the_session_took(monkeypatch, tmp_path, tells):
    world = SimpleNamespace(mib=100.0, mj=50)

    def opened(*arguments):
        world.mib += 30.25

    def run(count):
        world.mib += 10.0 * (count == 0)
        world.mj += 7

    device = SimpleNamespace(answers=tells, used_mib=lambda: world.mib, energy_mj=lambda: world.mj)
    monkeypatch.setattr(resource_usage, "Device", lambda options: device)
    monkeypatch.setattr(resource_usage, "open_at", opened)
    monkeypatch.setattr(resource_usage, "run_of", lambda session, feeds: run)
    monkeypatch.setattr(resource_usage, "ENERGY_SECONDS", 0.01)
    setting = Setting(Level.ALL, RuntimeOptions(provider=Provider.CPU))
    usage_of_model = resource_usage._usage(tmp_path / "m.onnx", setting, {})
    assert usage_of_model[1:] == ((40.2, 7.0) if tells else (None, None))
    assert world.mj >= 50 + (2 if tells else 1) * 7
