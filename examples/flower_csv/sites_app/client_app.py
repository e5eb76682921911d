"""What runs at a site."""

from coterie.engines.flower import client_app
from sites_app.task import load, net, schema, site

app = client_app(model=net, data=load, client=site, schema=schema)
