"""What runs at a node."""

from coterie.engines.flower import client_app
from digits_app.task import load, net

app = client_app(model=net, data=load)
