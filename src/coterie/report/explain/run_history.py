"""A run in words: each decision that changed groups, and how close the present groups are to a change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from coterie.methods import METHODS
from coterie.methods.tuned import EXPECTED_GAIN
from coterie.records.shown import ClientId, mean_of, shown_as
from coterie.report.contest import Contest
from coterie.report.explain.decision import decision
from coterie.report.explain.view import Clients, NoteView, RunHistory
from coterie.report.limits import refused_sentence
from coterie.report.listing import first_line
from coterie.report.ranking import with_baselines
from coterie.report.summary import agreement, without
from coterie.report.trials import MethodTrials, trial
from coterie.report.verdict import sentences, verdict
from coterie.report.words import count, who


def run_history(history: RunHistory) -> dict[str, Any]:
    """Return the explanation of a run; docs/explain.md has the fields."""
    notes = list(history.views())
    changed = [note for note in notes if note.changes]
    truth, together = history.truth, last_of_all(history, notes)
    contest, one = rivals(history)
    return {
        **heading(history),
        "verdict": sentences(verdict(contest, one)),
        "groups": [list(group) for group in history.groups],
        "true_groups": truth and [list(group) for group in truth],
        "agreement": agreement(
            without(history.groups, history.adversaries),
            truth and without(truth, history.adversaries),
        ),
        "decisions": [{**decision(note), "grounds": grounds(note, notes)} for note in changed],
        "choices": [decision(note) for note in choices(notes)],
        "unchanged": dict(
            Counter(note.kind for note in notes if not note.changes and note.effect != "serves")
        ),
        "unexplained": unexplained(history, changed),
        "limited": one.first.summary["limited"],
        "left_out": left_out(history),
        "standing": {
            "all": together and decision(together),
            "groups": [_standing(history, notes, group) for group in history.groups],
        },
    }


def left_out(history: RunHistory) -> dict[str, str]:
    """Return who was refused in the last round and is in no group, such as a node with another schema, and why."""
    last = history.lines[-1]
    present = {str(client) for group in history.groups for client in group}
    return {
        str(client): why for client, why in last["refused"].items() if str(client) not in present
    }


def _left_out(found: dict[str, Any]) -> list[tuple[int, str]]:
    if not found["left_out"]:
        return []
    refused = list(found["left_out"].items())
    out = [(0, "WHO TAKES NO PART")]
    out += [(1, f"Client {client}: {why}.") for client, why in refused[:SHOWN]]
    if len(refused) > SHOWN:
        out.append(
            (
                1,
                f"... and {count(len(refused) - SHOWN, 'further client')} (--json has all of them).",
            )
        )
    return [*out, (0, "")]


def rivals(history: RunHistory) -> tuple[Contest, MethodTrials]:
    """Return the run's comparison with FedAvg and Independent of its experiment, and its entry in it."""
    return with_baselines(history.folder, trial(history.folder, history.description, history.lines))


def heading(history: RunHistory) -> dict[str, Any]:
    """Return the run's directory, method, scenario, seed and rounds, and how its method decides."""
    return {
        "run": str(history.folder),
        "method": history.method,
        "scenario": history.description["scenario"]["name"],
        "seed": history.description["seeds"][0],
        "round": history.lines[-1]["round"],
        "rounds": history.description["rounds"],
        "about": first_line(METHODS[history.method]) if history.method in METHODS else "",
        "metric": shown_as(history.lines[-1]).main,
    }


def choices(notes: Sequence[NoteView]) -> list[NoteView]:
    """Return the notes about models that changed no group, and the last one about personal models."""
    personal = [note for note in notes if note.values(EXPECTED_GAIN)][-1:]
    return [*(note for note in notes if note.effect == "serves" and not note.changes), *personal]


def grounds(note: NoteView, notes: Sequence[NoteView]) -> list[str]:
    """Return the reasons for the groups of an arm that takes the lead: those of its decisions when it did not serve yet.

    Args:
        note: The note that the arm takes the lead.
        notes: The notes of the run, oldest first.
    """
    if note.effect != "serves":
        return []
    of_the_arm = []
    for earlier in notes:
        same_arm = earlier.labels.get("arm") == note.labels.get("arm")
        if not same_arm or earlier.place > note.place or earlier.effect != "info":
            continue
        if len(earlier.clients) > 1 and earlier.criteria and all(c.held for c in earlier.criteria):
            of_the_arm.append(earlier)
    return [
        f"Round {earlier.round}, {earlier.note['text'].removesuffix('.')}."
        for earlier in of_the_arm[-MAX_GROUNDS:]
    ]


MAX_GROUNDS = 3
"""The greatest number of decisions that are listed of an arm before it serves the clients."""


def last_about(notes: Sequence[NoteView], group: Clients) -> NoteView | None:
    """Return the last note about this group alone that left it unchanged.

    Args:
        notes: The notes of the run, oldest first.
        group: The members of the group.

    Returns:
        The note, or None if there is no such note or the group has changed since, except for
        clients that came or left.
    """
    members = set(group)
    for note in reversed(notes):
        there = set(note.clients)
        if _ends(note, members):
            return None
        if _examined(note) and 2 * len(there & members) > max(len(there), len(members)):
            return note
    return None


def last_of_all(history: RunHistory, notes: Sequence[NoteView]) -> NoteView | None:
    """Return the last note about several of the present groups together that left them unchanged.

    Args:
        history: The run.
        notes: The notes of the run, oldest first.

    Returns:
        The note, or None if there is no such note or one of the groups has changed since.
    """
    for note in reversed(notes):
        if _ends(note, {client for group in history.groups for client in group}):
            return None
        touched = sum(bool(set(note.clients) & set(group)) for group in history.groups)
        if _examined(note) and touched > 1:
            return note
    return None


def _ends(note: NoteView, members: set[ClientId]) -> bool:
    """Return whether a note changed groups of any of these clients, apart from the arrival of one client."""
    return note.changes and note.effect != "joins" and bool(members & set(note.clients))


def _examined(note: NoteView) -> bool:
    """Return whether a note is about groups that were examined and stayed, also by an arm that does not serve them."""
    if note.effect == "info":  # of an arm that does not serve the clients
        return bool(note.criteria)
    return not note.changes and note.effect in ("keeps", "divides", "regroups")


def _standing(history: RunHistory, notes: Sequence[NoteView], group: Clients) -> dict[str, Any]:
    """Return a group with its mean score in the last tested round, and the last decision that left it unchanged."""
    tested = next((line for line in reversed(history.lines) if line["tested"]), None)
    note = last_about(notes, group)
    return {
        "clients": list(group),
        "score": tested and mean_of(tested, group),
        "decision": note and decision(note),
    }


def unexplained(history: RunHistory, changed: Sequence[NoteView]) -> list[dict[str, Any]]:
    """Return the rounds after which groups had changed without a note that explains it.

    Clients that come or leave do not count as a change.

    Args:
        history: The run.
        changed: The notes that changed groups.
    """
    why = {note.round for note in changed} | {
        note.round + 1 for note in changed if note.effect in ("regroups", "joins")
    }
    found = []
    for before, line in zip(history.lines, history.lines[1:], strict=False):
        both = {c for group in before["groups"] for c in group} & {
            c for group in line["groups"] for c in group
        }
        old, new = (
            {tuple(sorted(both & set(group))) for group in one["groups"] if both & set(group)}
            for one in (before, line)
        )
        if old != new and line["round"] not in why:
            found.append({"round": line["round"], "groups": sorted(map(list, new - old))})
    return found


# -- in words
# -----------------------------------------------------------------------------------------------------------

SHOWN = 12
"""The number of decisions shown in full, half of them the first and half the last; and the number
of groups shown."""


def text(history: RunHistory, found: dict[str, Any]) -> list[tuple[int, str]]:
    """Return (indentation, paragraph) of a run's explanation."""
    return [
        *title(found),
        *_left_out(found),
        *_refused(history),
        *_changes(found),
        *_events(history),
        *_present(found),
    ]


def _refused(history: RunHistory) -> list[tuple[int, str]]:
    said = refused_sentence(history.lines)
    return [(0, "REPLIES THAT WERE REFUSED"), (1, f"{said}."), (0, "")] if said else []


def title(found: dict[str, Any], start: str = "") -> list[tuple[int, str]]:
    """Return the verdict, the run's method, scenario, seed, round and number of groups, and how the method decides.

    Args:
        found: The explanation of the run or of a client.
        start: The beginning of the sentence.
    """
    said = (
        f"{start}{found['method']} in {found['scenario']}, seed {found['seed']}, after round {found['round']} "
        f"of {found['rounds']}: {count(len(found['groups']), 'group')}."
    )
    return [(0, text) for text in (" ".join(found["verdict"]), said, found["about"]) if text] + [
        (0, "")
    ]


def first_and_last(
    items: Sequence[Any], most: int, noun: str, words: Callable[[Any], list[tuple[int, str]]]
) -> list[tuple[int, str]]:
    """Return the paragraphs of the first and the last items, and the number of those between.

    Args:
        items: The items.
        most: The greatest number of items, an even one.
        noun: What an item is called.
        words: Returns the paragraphs of an item.
    """
    out = [words(one) for one in items]
    if len(items) > most:
        out[most // 2 : -(most // 2)] = [
            [(1, f"... {count(len(items) - most, noun)} (--json has all of them) ...")]
        ]
    return [paragraph for paragraphs in out for paragraph in paragraphs]


def _changes(found: dict[str, Any]) -> list[tuple[int, str]]:
    decisions = found["decisions"]
    out = [(0, "WHAT CHANGED THE GROUPS")]
    if not decisions and not found["unexplained"]:
        out.append((1, "Nothing: the groups are those of the first round."))
    out += first_and_last(decisions, SHOWN, "further decision", described)
    for one in found["unexplained"][:SHOWN]:
        groups = "; ".join(who(group) for group in one["groups"][:4])
        out.append(
            (
                1,
                f"Round {one['round']}: the groups changed to {groups}, and no reason was recorded.",
            )
        )
    other = sum(found["unchanged"].values())
    if other:
        kinds = ", ".join(f"{kind} {number}" for kind, number in sorted(found["unchanged"].items()))
        out.append((1, f"{count(other, 'other note')} changed no group ({kinds})."))
    return [*out, (0, ""), *choice_words(found["choices"])]


def choice_words(told: Sequence[dict[str, Any]]) -> list[tuple[int, str]]:
    """Return the paragraphs about arms and personal models; none for a method without them."""
    if not told:
        return []
    head = [(0, "WHICH MODELS WERE TRAINED AND SERVED")]
    return [*head, *first_and_last(told, SHOWN, "further decision", _choice), (0, "")]


def _choice(one: dict[str, Any]) -> list[tuple[int, str]]:
    text = one["text"].removesuffix(".")
    return [
        (1, f"Round {one['round']}: {text}."),
        *((2, sentence) for sentence in one["words"][1:]),
    ]


def described(one: dict[str, Any]) -> list[tuple[int, str]]:
    """Return one decision: what happened, and below it the reasons."""
    words = [*one["words"], *one.get("grounds", ())]
    return [(1, f"Round {one['round']}: {happened(one)}"), *((2, sentence) for sentence in words)]


def happened(one: dict[str, Any]) -> str:
    """Return the effect of a decision in one sentence."""
    parts, clients = (
        [who(part) + " alone" * (len(part) == 1) for part in one["parts"]],
        one["clients"],
    )
    shown = " | ".join(parts[:6]) + (f" | and {len(parts) - 6} more" if len(parts) > 6 else "")
    match one["effect"]:
        case "merges":
            return f"two groups became one: {who(clients)}."
        case "joins":
            return f"client {clients[0]} " + (
                f"joined {who(one['joined'])}." if one["joined"] else "found its group."
            )
        case "arrives":
            return f"{who(clients)} arrived."
        case "leaves":
            return f"{who(clients)} left."
        case "moves":
            return f"client {clients[0]} moved to another group."
        case "waits":
            return f"client {clients[0]} is on its way to a group."
        case "serves" if len(parts) == 1:
            return f"{who(clients)} became one group."
        case "divides" if one["was_one_group"]:
            return f"{who(clients)} split into {shown}."
        case _ if len(parts) > 1:
            return f"{count(len(clients), 'client')} in {len(parts)} groups: {shown}."
        case _:
            return f"{who(clients)}."


def _events(history: RunHistory) -> list[tuple[int, str]]:
    events = []
    for before, line in zip(history.lines, history.lines[1:], strict=False):
        old, new = (
            {client for group in one["groups"] for client in group} for one in (before, line)
        )
        said = [
            f"{who(ids)} {what}"
            for ids, what in ((new - old, "arrived"), (old - new, "left"))
            if ids
        ]
        if said:
            events.append((1, f"Round {line['round']}: {'; '.join(said)}."))
    if len(events) > SHOWN:
        events[SHOWN:] = [(1, f"... and in {count(len(events) - SHOWN, 'further round')}.")]
    return [(0, "CLIENTS THAT ARRIVED OR LEFT"), *events, (0, "")] if events else []


def _present(found: dict[str, Any]) -> list[tuple[int, str]]:
    standing, out = found["standing"], [(0, "WHY THE GROUPS DID NOT CHANGE FURTHER")]
    if found["agreement"] is not None:
        alike = "the same as" if found["agreement"] == 1 else "not the same as"
        rand = (
            f"adjusted Rand index {found['agreement']:.2f}: 1 is full agreement, about 0 is chance"
        )
        out.append(
            (1, f"They are {alike} the true groups, which are hidden from all methods ({rand}).")
        )
    if standing["all"] is not None:
        out.append((1, f"All together, last examined in round {standing['all']['round']}:"))
        out += [(2, sentence) for sentence in standing["all"]["words"]]
    for one in standing["groups"][:SHOWN]:
        accurate = "" if one["score"] is None else f", mean {found['metric']} {one['score']:.3f}"
        why = one["decision"]
        same = why is None or why == standing["all"]
        name = f"{who(one['clients'])[:1].upper()}{who(one['clients'])[1:]}{accurate}"
        out.append((1, f"{name}." if same else f"{name}; last examined in round {why['round']}:"))
        out += [] if same else [(2, sentence) for sentence in why["words"]]
    if len(standing["groups"]) > SHOWN:
        out.append(
            (
                1,
                f"... and {count(len(standing['groups']) - SHOWN, 'further group')} (--json has all of them).",
            )
        )
    return out
