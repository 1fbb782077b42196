"""Jobs on the nodes of a Ray cluster.

    import ray
    import malt.ray

    def train(rate):
        malt.init()          # the loop as under `malt run`
        ...
    ray.init()
    results = malt.ray.run(train, 0.1, ranks=4)

`MaltConfig` does the same for Ray Train. Needs Ray (`pip install "malt-sgd[ray]"`), which
`import malt` alone never imports.
"""

from typing import TYPE_CHECKING

from malt._distribution import pip_install as _pip_install

try:
    import ray as _ray  # noqa: F401 - raises the message below if Ray is missing
except ImportError as error:
    raise ImportError(f"malt.ray needs Ray ({error}): {_pip_install('ray')}") from error

from malt.ray._run import run

if TYPE_CHECKING:
    from malt.ray._train import MaltConfig as MaltConfig

__all__ = ["MaltConfig", "run"]


def __getattr__(name: str) -> object:
    """Load `MaltConfig` on first use: Ray Train needs more packages than Ray."""
    if name != "MaltConfig":
        raise AttributeError(f"module 'malt.ray' has no attribute {name!r}")
    from malt.ray._train import MaltConfig

    return MaltConfig
