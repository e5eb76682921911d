"""A federation over a network: who connects to whom, through what, and what is kept where."""

from __future__ import annotations

from tools.docs.drawings.canvas import Drawing
from tools.docs.drawings.parts import cross, lock

WIDTH = 720
SERVER_LEFT = 18
SERVER_WIDTH = 286
WALL = 372
SITE_LEFT = 446
SITE_WIDTH = 256
SITE_HEIGHT = 154
SITES = (("site A", "client-0.key", 44), ("site B", "client-1.key", 226))
"""The name of each site, its key and the upper side of its box."""

PORT_Y = 130
NODE_Y = 46
"""The middle of a SuperNode, from the upper side of its site."""


def deployment() -> Drawing:
    """A server, two sites, and the firewall between them."""
    drawing = Drawing(
        WIDTH,
        434,
        "A federation over a network",
        "On the server's host run Flower's SuperLink, the ServerApp with Coterie's method and "
        "records, and you with flwr; they speak with each other on 127.0.0.1. At each site run a "
        "SuperNode and the ClientApp, which trains on data that stay there. Each SuperNode opens a "
        "connection, encrypted by TLS, to port 8000 of the server; the server never connects to a "
        "site. A firewall opens this port to the sites' hosts only. A site has its private key and "
        "the CA's certificate; the server has its own key and the sites' public keys.",
    )
    _server(drawing)
    _firewall(drawing)
    for name, key, top in SITES:
        _site(drawing, name, key, top)
        y = top + NODE_Y
        port_y = PORT_Y + (8 if y > PORT_Y else -8)
        drawing.arrow(
            (SITE_LEFT + 12, y),
            (WALL - 28, y),
            (WALL - 28, port_y),
            (SERVER_LEFT + SERVER_WIDTH + 4, port_y),
            colour="c0",
            width=2.5,
        )
        drawing.text((WALL + 7 + SITE_LEFT) / 2, y - 8, "TLS", anchor="middle", bold=True)
    _never(drawing)
    return drawing


def _server(drawing: Drawing) -> None:
    left, right = SERVER_LEFT, SERVER_LEFT + SERVER_WIDTH
    drawing.text(left + 4, 34, "server", size=16, bold=True)
    drawing.box(left, 44, SERVER_WIDTH, 336, fill="panel", stroke="line")
    drawing.box(left + 16, 96, 178, 68, fill="ground", stroke="c0", stroke_width=2.5)
    drawing.text(left + 30, 124, "SuperLink", bold=True)
    drawing.text(left + 30, 146, "one open port", colour="quiet")
    drawing.box(right - 88, 114, 88, 32, fill="c0", opacity=0.2, radius=4)
    drawing.text(right - 44, 135, "port 8000", anchor="middle")
    drawing.text(left + 16, 72, "you, with flwr")
    drawing.arrow((left + 130, 67), (left + 160, 67), (left + 160, 92))
    drawing.box(left + 16, 208, 178, 48, fill="ground", stroke="quiet")
    drawing.text(left + 30, 230, "ServerApp", bold=True)
    drawing.text(left + 30, 248, "Coterie's method", colour="quiet")
    drawing.arrow((left + 105, 204), (left + 105, 168), both=True)
    drawing.text(left + 118, 191, "127.0.0.1", colour="quiet")
    drawing.lines(
        left + 16,
        284,
        [
            "server.key, server.pem",
            "the sites' public keys",
            "clients.toml: whose key is whose",
            "run/: records and models",
        ],
        leading=22,
    )


def _firewall(drawing: Drawing) -> None:
    for row in range(14):
        y = 52 + 24 * row
        drawing.box(WALL - 7, y, 14, 20, fill="c4", opacity=0.45, radius=2)
    drawing.text(WALL, 34, "firewall", anchor="middle", bold=True)
    drawing.lines(
        WALL - 2,
        404,
        ["open: port 8000,", "to the sites only"],
        anchor="middle",
        colour="quiet",
    )


def _site(drawing: Drawing, name: str, key: str, top: float) -> None:
    drawing.text(SITE_LEFT + 4, top - 10, name, size=16, bold=True)
    drawing.box(SITE_LEFT, top, SITE_WIDTH, SITE_HEIGHT, fill="panel", stroke="line")
    drawing.box(SITE_LEFT + 14, top + 24, 98, 44, fill="ground", stroke="c0", stroke_width=2.5)
    drawing.text(SITE_LEFT + 63, top + 51, "SuperNode", anchor="middle", bold=True)
    drawing.box(SITE_LEFT + 146, top + 24, 96, 44, fill="ground", stroke="quiet")
    drawing.text(SITE_LEFT + 194, top + 51, "ClientApp", anchor="middle", bold=True)
    drawing.arrow((SITE_LEFT + 116, top + NODE_Y), (SITE_LEFT + 142, top + NODE_Y), both=True)
    _data(drawing, SITE_LEFT + 194, top + 100)
    drawing.arrow((SITE_LEFT + 194, top + 96), (SITE_LEFT + 194, top + 72))
    lock(drawing, SITE_LEFT + 26, top + 104)
    drawing.text(SITE_LEFT + 42, top + 107, key)
    drawing.text(SITE_LEFT + 42, top + 130, "ca.pem")


def _data(drawing: Drawing, x: float, y: float) -> None:
    """A store of data, whose upper side is at ``y``."""
    drawing.path(
        f"M{x - 30} {y + 8} v20 a30 8 0 0 0 60 0 v-20",
        colour="c2",
        fill="ground",
        width=2,
    )
    drawing.element(
        "ellipse",
        cx=float(x),
        cy=float(y + 8),
        rx=30,
        ry=8,
        class_=drawing.paint("ground", "c2"),
        stroke_width=2,
    )
    drawing.text(x, y + 31, "data", anchor="middle")


def _never(drawing: Drawing) -> None:
    y = 316
    right = SERVER_LEFT + SERVER_WIDTH
    drawing.arrow((right + 4, y), (right + 54, y), dashed=True)
    cross(drawing, right + 26, y)
    drawing.text(right + 27, 342, "never", anchor="middle", colour="quiet")
