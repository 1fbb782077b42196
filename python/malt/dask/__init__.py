"""Jobs on the workers of a Dask cluster.

    from dask.distributed import Client
    import malt.dask

    def train(rate):
        malt.init()          # the loop as under `malt run`
        ...
    results = malt.dask.run(Client(), train, 0.1)

Needs Dask's distributed scheduler (`pip install "malt-sgd[dask]"`), which `import malt` alone never
imports. The workers must be processes.
"""

from malt._distribution import pip_install as _pip_install

try:
    import distributed as _distributed  # noqa: F401 - raises the message below if Dask is missing
except ImportError as error:
    raise ImportError(
        f"malt.dask needs Dask's distributed scheduler ({error}): {_pip_install('dask')}"
    ) from error

from malt.dask._fit import fit
from malt.dask._run import run

__all__ = ["fit", "run"]
