"""What runs at a site of a federation, and at its server: Flower apps of one file, ``federation.toml``.

    app = site_app(Path(__file__).with_name("federation.toml"))

Before the first round, the server asks the sites for sums of their training rows (:mod:`.grid_agreement`).
The constants that follow from them are in every later message, so that a site which joins late, or starts
again, has them too. A site whose table does not fit the file takes no part: its log has the reason, and
the server learns that there is one.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from coterie.boundary import Boundary, secret_of_environment
from coterie.contrib.sites.agreement import SumQuestion
from coterie.contrib.sites.federation_file import TableFederation
from coterie.contrib.sites.masked_answers import encoded
from coterie.contrib.sites.site import Site
from coterie.contrib.sites.sources import read_source
from coterie.data.datasets.table import is_table_file
from coterie.data.schema import FIELDS_OF_PART, Schema
from coterie.engines.flower import Participant, boundary_mod, client_app, schemas
from coterie.engines.flower.messages import CONFIG, QUERY, SCHEMA
from coterie.engines.flower.names import Claim, claim_of, id_reply
from coterie.extensions import provided
from coterie.models import nets
from coterie.printable import printable
from coterie.settings import SettingError, UserError, changed

AGREED = "coterie-agreed"
"""Key of the config of a message, and record of a node's state: the agreed constants, as JSON."""

QUESTION = "coterie-sums"
"""Key of the config of a message: a question about sums over training rows, as JSON."""

ACTION = "coterie_sums"
"""Action of the messages with questions, and with the steps of masked sums."""

SITE_ANSWER = "coterie-answer"
"""Record of a reply: an array for each entry of an answer."""

DATA = "data"
SQL_QUERY = "query"
FEDERATION_DIGEST = "federation"
BUDGET = "budget"
"""Keys of a node's config: where the rows are, the query of a database, the digest of the federation's
file that the site has checked, and the greatest ε that its updates may spend."""

SITES_FOLDER = "sites"
"""Key of the run config of a simulation: a folder with a table for each site."""

UNFIT_TABLE = "its table does not fit the federation's file; the node's log says how"

log = logging.getLogger("flwr.coterie")


def site_app(file: Path | str) -> ClientApp:
    """Return the app of a site.

    Args:
        file: The path of ``federation.toml``.

    Raises:
        UserError: The file cannot be read, or a setting is not allowed.
    """
    federation = TableFederation.from_file(file)
    boundary = federation.experiment.boundary

    def participant(context: Context) -> Participant:
        agreed = agreed_of(context)
        if agreed is None:
            raise SettingError("the server has sent no agreed constants: is its app another one?")
        site_data = fitting_site(federation, context).data(agreed)
        model = nets.factory(federation.scenario.model, _shape(agreed), federation.outputs)
        return Participant(site_data.data, model, site_data.objective)

    def protect(message: Message, context: Context, call_next: Any) -> Message:
        """The mod: what comes before the app, and the privacy that the file asks for."""
        keep_agreed(message.content, context)
        agreed = agreed_of(context)
        if message.metadata.message_type == QUERY:
            refusal = refusal_of(federation, context)
            if refusal is not None:
                return Message(refusal, reply_to=message)
            # Before the sites have agreed, a site only says who it is.
            if agreed is None:
                return Message(id_reply(claim_of_site(context)), reply_to=message)
        # Questions about sums come before there is a model, whose updates the privacy is for.
        is_about_sums = message.metadata.message_type == f"query.{ACTION}"
        if agreed is None or is_about_sums or boundary == Boundary():
            reply: Message = call_next(message, context)
            return reply
        budget = context.node_config.get(BUDGET)
        mod = boundary_mod(
            _with_secret(boundary),
            nets.factory(federation.scenario.model, _shape(agreed), federation.outputs),
            budget=None if budget is None else float(budget),
        )
        return mod(message, context, call_next)

    app = client_app(
        participant=participant,
        client=lambda context: str(claim_of_site(context)),
        mods=[protect],
    )

    @app.query(ACTION)
    def answer(message: Message, context: Context) -> Message:
        return Message(answered(federation, message.content, context), reply_to=message)

    return app


def _shape(agreed: Mapping[str, Any]) -> tuple[int, ...]:
    return (len(agreed["about"]["features"]),)


def _with_secret(boundary: Boundary) -> Boundary:
    """The boundary with the secret of the node's environment, which the file does not have."""
    secret = None if boundary.rotation == "none" else secret_of_environment()
    return boundary if secret is None else changed(boundary, {"secret": secret}, "boundary")


# ----------------------------------------------------------------------------------------------------
# Who a site is, and its rows.


def claim_of_site(context: Context) -> Claim:
    """Return the client that a node is: ``client-id`` of its config, or in a simulation the name of its file.

    Raises:
        SettingError: The config names none.
    """
    node_config = context.node_config
    if "client-id" in node_config:
        return claim_of(node_config["client-id"], "client-id")
    if SITES_FOLDER in context.run_config and "partition-id" in node_config:
        return claim_of(_file_of_simulation(context).name.partition(".")[0], "a site's file")
    raise SettingError(
        'the node config must name the site: --node-config \'client-id="north" data="/srv/records.csv"\''
    )


def _file_of_simulation(context: Context) -> Path:
    folder = Path(str(context.run_config[SITES_FOLDER]))
    files = sorted(filter(is_table_file, folder.iterdir()))
    return files[int(context.node_config["partition-id"]) % len(files)]


def site_of(federation: TableFederation, context: Context) -> Site:
    """Return the site of a node, whose rows are read.

    Raises:
        UserError: The rows cannot be read, or do not fit the file.
    """
    node_config = context.node_config
    stated_digest = str(node_config.get(FEDERATION_DIGEST, ""))
    if stated_digest not in ("", federation.digest):
        raise SettingError(
            "the server's app has another federation.toml than the one with which this node was started"
        )
    claim = claim_of_site(context)
    if DATA in node_config:
        source = str(node_config[DATA])
    elif "client-id" not in node_config:
        source = str(_file_of_simulation(context))
    else:
        raise SettingError('the node config must name the rows: data="/srv/records.csv"')
    table, table_name = read_source(source, str(node_config.get(SQL_QUERY, "")))
    return Site(federation, str(claim), claim.client, table, table_name)


def fitting_site(federation: TableFederation, context: Context) -> Site:
    """Return the site of a node, as :func:`site_of` does.

    Raises:
        UserError: The rows do not fit the file. The reason may show a value of a row, and Flower sends
            errors to the server: so it is in the node's log alone.
    """
    try:
        return site_of(federation, context)
    except UserError as error:
        log.warning(printable(f"this node takes no part: {error}"))
        raise UserError(UNFIT_TABLE) from None


def refusal_of(federation: TableFederation, context: Context) -> RecordDict | None:
    """Return the reply of a node that takes no part; None if its rows fit the file."""
    try:
        fitting_site(federation, context)
        return None
    except UserError:
        pass
    statement = schemas.Stated(
        words=Schema(), digests=dict.fromkeys(FIELDS_OF_PART, ""), model=UNFIT_TABLE
    )
    return RecordDict({**id_reply(claim_of_site(context)), SCHEMA: schemas.record_of(statement)})


# ----------------------------------------------------------------------------------------------------
# The agreed constants, and questions about sums.


def keep_agreed(content: RecordDict, context: Context) -> None:
    """Keep the constants of a message in the node's state: some messages of the same run have none."""
    message_config = content.get(CONFIG)
    if isinstance(message_config, ConfigRecord) and AGREED in message_config:
        context.state[AGREED] = ConfigRecord({AGREED: str(message_config[AGREED])})


def agreed_of(context: Context) -> dict[str, Any] | None:
    """Return the constants that the server has sent; None before the sites have agreed."""
    record = context.state.get(AGREED)
    if not isinstance(record, ConfigRecord):
        return None
    agreed: dict[str, Any] = json.loads(str(record[AGREED]))
    return agreed


def answered(federation: TableFederation, content: RecordDict, context: Context) -> RecordDict:
    """Return the answer to a question about sums, or to a step of a masked sum.

    Raises:
        UserError: The question is not one of the file's, or masks are asked for and not used.
    """
    sums: Any = provided("coterie.exchanges", "flower-sums") if federation.masks else None
    message_config = content.config_records[CONFIG]
    if QUESTION not in message_config:
        step_reply = None
        if sums is not None:
            step_reply = sums.reply_to_step(content, context, Boundary(masks=True), True)
        if not isinstance(step_reply, RecordDict):
            raise SettingError("a message has neither a question nor a step of a masked sum")
        return step_reply
    question = SumQuestion.of(json.loads(str(message_config[QUESTION])))
    answer = fitting_site(federation, context).answer(question)
    if sums is not None:
        masked: RecordDict = sums.masked_vector(content, encoded(answer), context)
        return masked
    arrays = {name: Array(numbers) for name, numbers in answer.items()}
    return RecordDict({SITE_ANSWER: ArrayRecord(arrays)})
