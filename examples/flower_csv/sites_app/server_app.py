"""What runs at the server."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from coterie.engines.flower import MethodStrategy
from sites_app.task import net

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    strategy = MethodStrategy.from_config(context.run_config, net)
    strategy.start(grid, num_rounds=int(context.run_config["rounds"]))
