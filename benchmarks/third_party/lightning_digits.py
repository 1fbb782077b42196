"""Lightning: a module with a small convolutional network, on scikit-learn's digits."""

import logging
import time
import warnings

import lightning
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import malt  # +
import malt.torch  # +

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Digits(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(128, 10)),
        )

    def training_step(self, batch, _):
        x, y = batch
        return F.cross_entropy(self.layers(x), y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.02, momentum=0.9)


class Average(lightning.Callback):  # +
    def on_train_start(self, _, module):  # +
        self.average = malt.torch.average(module, every=20)  # +

    def on_train_batch_end(self, *_):  # +
        self.average.step()  # +

    def on_train_end(self, *_):  # +
        self.average.allreduce()  # +


lightning.seed_everything(0, verbose=False)
x, y = load_digits(return_X_y=True)
order = torch.randperm(len(x))
x, y = torch.tensor(x / 16, dtype=torch.float32).view(-1, 1, 8, 8)[order], torch.tensor(y)[order]
x, y, x_test, y_test = x[450:], y[450:], x[:450], y[:450]
malt.init()  # +
x, y = malt.shard(x, even=True), malt.shard(y, even=True)  # +
batches = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
model = Digits()
trainer = lightning.Trainer(
    accelerator="cpu",
    max_epochs=10,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    callbacks=Average(),  # +
)
start, own = time.perf_counter(), time.process_time()
trainer.fit(model, batches)
own, seconds = time.process_time() - own, time.perf_counter() - start

model.eval()
with torch.no_grad():
    right = 100 * (model.layers(x_test).argmax(1) == y_test).float().mean().item()
print(f"score {right:.4f} seconds {seconds:.3f} processor {own:.3f}")
