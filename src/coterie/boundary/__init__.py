"""Protection of rows that leave or enter a client: rotation, clipping, noise, compression.

An orthonormal map hides the coordinates of models and updates from the server. Norms and inner
products do not change, and the mean of mapped rows is the mapped mean, so a method that uses only
these finds the same groups (F. Sattler, K.-R. Müller, W. Samek, "Clustered Federated Learning",
IEEE TNNLS 2020, arXiv 1910.01991, section "Privacy preservation", equations 45-46). Clipping and
Gaussian noise give each client its own differential privacy. docs/deploy/privacy.md has the threat model:
the information that each of them hides, and from which party.
"""

from __future__ import annotations

from coterie.boundary.compress import NUMBER_BYTES as NUMBER_BYTES
from coterie.boundary.compress import pack as pack
from coterie.boundary.compress import packed_bytes as packed_bytes
from coterie.boundary.compress import unpack as unpack
from coterie.boundary.privacy import noise_for as noise_for
from coterie.boundary.privacy import spent as spent
from coterie.boundary.rules import Boundary as Boundary
from coterie.boundary.rules import known_by as known_by
from coterie.boundary.rules import secret_of_environment as secret_of_environment
from coterie.boundary.rules import secret_of_file as secret_of_file
from coterie.boundary.rules import unlike_secret as unlike_secret
from coterie.boundary.wire import Wire as Wire
from coterie.boundary.wire import update_number as update_number
