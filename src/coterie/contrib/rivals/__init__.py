"""Methods that were made for comparisons: CFL-GP, CLoVE, FedDrift and pFedGraph."""

from coterie.contrib.rivals.cflgp import CFLGP as CFLGP
from coterie.contrib.rivals.clove import CLoVE as CLoVE
from coterie.contrib.rivals.feddrift import FedDrift as FedDrift
from coterie.contrib.rivals.pfedgraph import PFedGraph as PFedGraph
