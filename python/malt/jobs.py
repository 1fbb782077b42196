"""The job that `malt.init` joins: how its ranks meet, come back and leave."""

from malt._bootstrap.bootstrap import Bootstrap
from malt._job.job import Job, leave, leaving, on_change, restarts
from malt._rendezvous.driver import Rendezvous

__all__ = ["Bootstrap", "Job", "Rendezvous", "leave", "leaving", "on_change", "restarts"]
