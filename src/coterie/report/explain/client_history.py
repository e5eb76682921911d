"""The history of one client in a run, in words: at each decision about it, the group it came to and the reason."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from coterie.methods.tuned import EXPECTED_GAIN
from coterie.records.record import Line
from coterie.records.shown import ClientId, shown_as
from coterie.report.explain import run_history
from coterie.report.explain.decision import decision, member
from coterie.report.explain.view import Clients, NoteView, RunHistory, of_client
from coterie.report.gathered import follow
from coterie.report.limits import limited_clients
from coterie.report.summary import silent
from coterie.report.verdict import for_client
from coterie.report.words import count, rounds, short, who

SHOWN = 10
"""The number of steps shown in full, half of them the first and half the last."""


def client_history(history: RunHistory, asked: ClientId) -> dict[str, Any]:
    """Return the history of one client; docs/explain.md has the fields.

    Args:
        history: The run.
        asked: The client, by its name, or by its number if clients have no names.

    Raises:
        UserError: If the client is not present.
    """
    (client, group), notes = of_client(history, asked), list(history.views())
    contest, one = run_history.rivals(history)
    compared = for_client(contest, one, client)
    steps, skipped = _steps(notes, client)
    chosen = [note for note in run_history.choices(notes) if client in note.clients]
    last = [
        note
        for note in (run_history.last_about(notes, group), run_history.last_of_all(history, notes))
        if note is not None and client in note.clients and note not in steps
    ]
    return {
        **run_history.heading(history),
        "verdict": [compared] if compared else [],
        "groups": [list(members) for members in history.groups],
        "client": client,
        "group": list(group),
        "truth": _truth(history, group, client),
        "adversary": client in history.adversaries,
        "score": _score(reversed(history.lines), client),
        "path": _path(history, client),
        "steps": [
            {**_step(history, note, client), "grounds": run_history.grounds(note, notes)}
            for note in steps
        ],
        "choices": [decision(note) for note in chosen],
        "personal": _personal(chosen, client),
        "unchanged": skipped,
        "standing": [
            _step(history, note, client) for i, note in enumerate(last) if note not in last[:i]
        ],
        "silent": [line["round"] for line in history.lines if silent(line, client)],
        "limited": limited_clients(one.first.limits, client),
        "refused": {
            line["round"]: why
            for line in history.lines
            if (why := line["refused"].get(str(client)))
        },
    }


def _steps(notes: Sequence[NoteView], client: ClientId) -> tuple[list[NoteView], int]:
    """Return the notes that led to a client's present group, and the number of notes that changed only other groups."""
    found, skipped, place = [], 0, None
    for note in notes:
        if client not in note.clients:
            continue
        if note.effect in ("arrives", "waits", "joins", "moves", "merges", "leaves"):
            found.append(note)
        elif note.parts and note.changes:
            now = _place(note, client, place)
            if now != place:
                found.append(note)
            else:
                skipped += 1
            place = now
    return found, skipped


def _place(note: NoteView, client: ClientId, before: Any) -> Any:
    """Return where a note placed a client: the model that it took, if notes name it, or the clients that it is with.

    A client that did not take a model keeps its place ``before``.
    """
    models = note.values("model")
    return (
        models.get(client, before)
        if models
        else next((frozenset(part) for part in note.parts if client in part), None)
    )


def _personal(notes: Sequence[NoteView], client: ClientId) -> dict[str, Any] | None:
    """Return the client's expected difference of held-out losses, and whether its personal model serves it.

    It is None for a method without personal models.
    """
    gain = next(
        (values.get(client) for note in reversed(notes) if (values := note.values(EXPECTED_GAIN))),
        None,
    )
    return None if gain is None else {"expected": gain, "serves": gain < 0}


def _step(history: RunHistory, note: NoteView, client: ClientId) -> dict[str, Any]:
    after = note.place + (note.effect == "regroups")  # the new groups train in the next round
    return {
        **decision(note),
        "client": member(note, client),
        "score_before": _score(reversed(history.lines[: note.place]), client),
        "score_after": _score(history.lines[after:], client),
    }


def _score(lines: Iterable[Line], client: ClientId) -> dict[str, Any] | None:
    """Return the client's first value of the main metric in ``lines``, its round, and the metric."""
    for line in lines:
        main = shown_as(line).main
        value = line["clients"].get(str(client), {}).get(main) if line["tested"] else None
        if value is not None:
            return {"round": line["round"], "metric": main, "value": value}
    return None


def _path(history: RunHistory, client: ClientId) -> list[dict[str, Any]]:
    """Return the groups that the client was in, their first and last rounds, and its last score with each model."""
    _, places = follow(history.lines)
    at = [
        (id, line)
        for line, row in zip(history.lines, places, strict=True)
        for id, group in zip(row, line["groups"], strict=True)
        if client in group
    ]
    spans = [[line for _, line in inside] for _, inside in groupby(at, key=itemgetter(0))]
    return [
        {
            "clients": next(list(group) for group in lines[-1]["groups"] if client in group),
            "first": lines[0]["round"],
            "last": lines[-1]["round"],
            "score": _score(reversed(lines), client),
        }
        for lines in spans
    ]


def _truth(history: RunHistory, group: Clients, client: ClientId) -> dict[str, Any] | None:
    """Return the client's true group, the members of its group that are not in it, and those of it that are missing.

    It is None if the true group is not known.
    """
    true = next((members for members in history.truth or () if client in members), None)
    if true is None:
        return None
    return {
        "group": list(true),
        "with": sorted(set(group) - set(true)),
        "without": sorted(set(true) - set(group)),
    }


# -- in words
# -----------------------------------------------------------------------------------------------------------


def text(found: dict[str, Any]) -> list[tuple[int, str]]:
    """Return (indentation, paragraph) of a client's explanation."""
    out = [
        *run_history.title(found, f"Client {found['client']}. "),
        *_now(found),
        (0, "DECISIONS ABOUT IT"),
    ]
    if not found["steps"]:
        out.append((1, "None: it has been in this group since the first round."))
    out += run_history.first_and_last(
        found["steps"], SHOWN, "further step", lambda one: _described(one, found)
    )
    if found["unchanged"]:
        out.append(
            (1, f"{count(found['unchanged'], 'other decision')} changed groups without moving it.")
        )
    out += [(0, ""), *_path_words(found)]
    if found["standing"]:
        out += [(0, ""), (0, "WHY IT STAYED")]
        for one in found["standing"]:
            out.append((1, f"Round {one['round']}, the last time that its group was examined:"))
            out += [
                (2, sentence)
                for sentence in dict.fromkeys([*one["words"], *one["client"]["words"]])
            ]
    return [*out, (0, ""), *run_history.choice_words(_with_personal(found)), *_absences(found)]


def _with_personal(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the decisions about arms and personal models; the last one has what it says of the client."""
    if found["personal"] is None:
        return list(found["choices"])
    *most, last = found["choices"]
    gain = found["personal"]["expected"]
    which = (
        "Its personal model serves it"
        if found["personal"]["serves"]
        else "Its personal model does not serve it"
    )
    side = "lower" if gain < 0 else "higher"
    said = f"{which}: its held-out loss is expected to be {side} by {short(abs(gain))} than that of the model from the server."
    return [*most, {**last, "words": [*last["words"], said]}]


def _now(found: dict[str, Any]) -> list[tuple[int, str]]:
    others = [client for client in found["group"] if client != found["client"]]
    out = [(0, f"It is with {who(others)}." if others else "It is alone in its group.")]
    if found["truth"] is not None:
        away = [
            (words, found["truth"][key])
            for words, key in (("it is with", "with"), ("it lacks", "without"))
        ]
        wrong = "; ".join(f"{words} {who(ids)}" for words, ids in away if ids)
        said = f"This is not its true group: {wrong}." if wrong else "This is its true group."
        out.append(
            (0, f"{said} (The true groups come with the data and are hidden from all methods.)")
        )
    if found["adversary"]:
        out.append(
            (0, "It simulates an adversary. (This is recorded, and hidden from all methods.)")
        )
    return [*out, (0, "")]


def _described(one: dict[str, Any], found: dict[str, Any]) -> list[tuple[int, str]]:
    out = [(1, f"Round {one['round']}: {run_history.happened(one)}")]
    out += [
        (2, sentence)
        for sentence in dict.fromkeys([*one["client"]["words"], *one["words"], *one["grounds"]])
    ]
    before, after, now = one["score_before"], one["score_after"], found["score"]
    said = [
        f"{value['value']:.3f} {when} (round {value['round']})"
        for value, when in ((before, "before"), (after, "after"), (now, "now"))
        if value is not None
    ]
    return [*out, (2, f"Its {found['metric']}: {', '.join(said)}.")] if said else out


def _path_words(found: dict[str, Any]) -> list[tuple[int, str]]:
    out = [(0, f"ITS GROUPS, AND ITS {found['metric'].upper()} WITH THE MODEL OF EACH")]
    path = found["path"]
    for one in path[-SHOWN:]:
        span = (
            f"round {one['first']}"
            if one["first"] == one["last"]
            else f"rounds {one['first']}-{one['last']}"
        )
        last = one["score"]
        tested = (
            f"{last['metric']} {last['value']:.3f} in round {last['round']}"
            if last
            else "not tested"
        )
        out.append((1, f"{span[:1].upper()}{span[1:]}: {who(one['clients'])}; {tested}."))
    return (
        out
        if len(path) <= SHOWN
        else [out[0], (1, f"... {count(len(path) - SHOWN, 'earlier group')} ..."), *out[1:]]
    )


def _absences(found: dict[str, Any]) -> list[tuple[int, str]]:
    out = []
    if found["silent"]:
        out.append((0, f"It did not answer in {rounds(found['silent'])}."))
    out += [(0, text) for text in found["limited"]]
    for round, why in list(found["refused"].items())[:3]:
        out.append((0, f"Its reply of round {round} was refused: {why}."))
    if len(found["refused"]) > 3:
        out.append((0, f"... and in {count(len(found['refused']) - 3, 'further round')}."))
    return out or [(0, "It answered every request.")]
