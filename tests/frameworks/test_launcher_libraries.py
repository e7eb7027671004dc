"""Libraries that start their own processes, on two workers as users submit them: they become one world."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_launchers import two  # noqa: F401 (a fixture)

ACCELERATE = """
import accelerate, torch
accelerator = accelerate.Accelerator()
value = accelerator.reduce(torch.ones(1) * (accelerator.process_index + 1))
print(f"sum {value.item():.0f} of {accelerator.num_processes}", flush=True)
"""
LIGHTNING = """
import lightning, torch

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def training_step(self, batch, index):
        return self.layer(batch[0]).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

    def on_train_end(self):
        value = self.trainer.strategy.reduce(torch.tensor(self.global_rank + 1.0), reduce_op="sum")
        print(f"sum {value:.0f} of {self.trainer.world_size}", flush=True)

data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(8, 2)), num_workers=0)
trainer = lightning.Trainer(max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False)
trainer.fit(Model(), data)
"""


@pytest.fixture
def launchers(python_of: Any) -> list[str]:
    """Options for the environment that has Accelerate and Lightning, with torch of this one."""
    torch = pytest.importorskip("torch")
    environment = Path(python_of("launchers")).parents[1]
    return ["--venv", str(environment), "--env", f"PYTHONPATH={Path(torch.__file__).parents[1]}"]


def test_accelerate_for_one_machine(two: Any, launchers: list[str]) -> None:  # noqa: F811
    printed = two("by-accelerate", ACCELERATE, "accelerate launch train.py", *launchers)
    assert printed.count("sum 3 of 2") == 2


def test_lightnings_trainer_without_arguments(two: Any, launchers: list[str]) -> None:  # noqa: F811
    printed = two("by-lightning", LIGHTNING, "python train.py", *launchers)
    assert printed.count("sum 3 of 2") == 2
