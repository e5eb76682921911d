"""A run in words: each decision that changed groups, and how close the present groups are to a change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

from coterie.methods import METHODS
from coterie.methods.tuned import EXPECTED_GAIN, GAIN_OF_NEIGHBOURS
from coterie.records.ending import Ending
from coterie.records.shown import ClientId, Line, mean_of, personal_clients, shown_as
from coterie.report.contest import Contest
from coterie.report.explain.decision import decision
from coterie.report.explain.view import Clients, NoteView, RunHistory, clients_of
from coterie.report.limits import refused_sentence
from coterie.report.listing import first_line
from coterie.report.ranking import with_baselines, with_other_seeds
from coterie.report.screen import screen
from coterie.report.summary import agreement, last_tested, without
from coterie.report.trials import MethodTrials, trial
from coterie.report.verdict import sentences, verdict
from coterie.report.words import count, data_title, readable, rounds, who

Paragraph = tuple[int, str]
"""A paragraph of an explanation: its indentation, in steps, and its text; an empty text is an empty line."""

MAX_SHOWN = 12
"""The number of decisions shown in full, half of them the first and half the last; and the number
of groups shown."""

MAX_PARTS_IN_SENTENCE = 6
"""The greatest number of parts that the sentence about a decision names."""

MAX_UNEXPLAINED_GROUPS = 4
"""The greatest number of groups that the sentence about a change without a reason names."""

MAX_GROUNDS = 3
"""The greatest number of decisions that are listed of an arm before it serves the clients."""


def run_history(history: RunHistory) -> dict[str, Any]:
    """Return the explanation of a run; notes/explain.md has the fields."""
    # 1. The notes, and those of them that changed groups.
    notes = list(history.views())
    changes = [note for note in notes if note.changes]
    truth = history.truth
    # 2. The run among the runs of other methods, and against the true groups.
    contest, run_in_contest = rivals(history)
    over_seeds = rivals_over_seeds(history)
    rand_index = agreement(
        without(history.groups, history.adversaries),
        truth and without(truth, history.adversaries),
    )
    # 3. The decisions, with their reasons.
    decision_entries = []
    for note in changes:
        decision_entries.append({**decision(note), "grounds": grounds(note, notes)})
    # Notes that changed no group, by kind; those on models are among the choices.
    unchanged = Counter(note.kind for note in notes if not note.changes and note.effect != "serves")
    last_note_of_all = last_of_all(history, notes)
    return {
        **heading(history),
        "screen": screen(contest, run_in_contest, over_seeds[1] if over_seeds else None),
        "verdict": sentences(verdict(contest, run_in_contest)),
        "best_round": run_in_contest.first.summary["best_round"],
        "groups": list(map(list, history.groups)),
        "true_groups": truth and list(map(list, truth)),
        "agreement": rand_index,
        "decisions": decision_entries,
        "choices": list(map(decision, choices(notes))),
        "unchanged": dict(unchanged),
        "unexplained": unexplained(history, changes),
        "limited": run_in_contest.first.summary["limited"],
        "privacy": run_in_contest.first.summary["privacy"],
        "left_out": left_out(history),
        "standing": {
            "all": last_note_of_all and decision(last_note_of_all),
            "groups": [_standing(history, notes, group) for group in history.groups],
        },
    }


def left_out(history: RunHistory) -> dict[str, str]:
    """Return who was refused in the last round and is in no group, such as a node with another schema, and why."""
    # A client that is in a group takes part, even if a reply of it was refused.
    last_line = history.lines[-1]
    present = set(map(str, history.present))
    left_out_clients = {}
    for client, reason in last_line["refused"].items():
        if str(client) not in present:
            left_out_clients[str(client)] = reason
    return left_out_clients


def rivals(history: RunHistory) -> tuple[Contest, MethodTrials]:
    """Return the run's comparison with FedAvg and Independent of its experiment, and its entry in it."""
    return with_baselines(history.folder, trial(history.folder, history.description, history.lines))


def rivals_over_seeds(history: RunHistory) -> tuple[Contest, MethodTrials] | None:
    """Return the same over all seeds of its experiment; None if there is one seed."""
    own_trial = trial(history.folder, history.description, history.lines)
    return with_other_seeds(history.folder, own_trial)


def heading(history: RunHistory) -> dict[str, Any]:
    """Return the run's directory, method, scenario, seed and rounds, and how its method decides."""
    all_clients = history.description["world"].get("all_clients")
    return {
        "run": str(history.folder),
        **({} if all_clients is None else {"all_clients": all_clients}),
        "method": history.method,
        "scenario": history.description["scenario"]["name"],
        "title": data_title(history.description),
        "seed": history.description["seeds"][0],
        "round": history.lines[-1]["round"],
        "rounds": history.description["rounds"],
        "about": first_line(METHODS[history.method]) if history.method in METHODS else "",
        "metric": shown_as(history.lines[-1]).main,
    }


def choices(notes: Sequence[NoteView]) -> list[NoteView]:
    """Return the notes about models that changed no group, and the last ones about personal models and neighbours."""
    about_models = [note for note in notes if note.effect == "serves" and not note.changes]
    # Notes of a candidate that is not in use have another kind.
    of_served_models = [note for note in notes if note.kind == "tune"]
    about_personal_models = [note for note in of_served_models if note.values(EXPECTED_GAIN)]
    about_neighbours = [note for note in of_served_models if note.values(GAIN_OF_NEIGHBOURS)]
    return [*about_models, *about_personal_models[-1:], *about_neighbours[-1:]]


def grounds(note: NoteView, notes: Sequence[NoteView]) -> list[str]:
    """Return the reasons for the groups of an arm that takes the lead: those of its decisions when it did not serve yet.

    Args:
        note: The note that the arm takes the lead.
        notes: The notes of the run, oldest first.
    """
    if note.effect != "serves":
        return []
    # An arm's own notes have the effect "info" as long as it does not serve.
    arm = note.labels.get("arm")
    decisions_of_arm = []
    for earlier in notes:
        if earlier.effect != "info" or earlier.labels.get("arm") != arm:
            continue
        # Later decisions, and those about single clients, are no reason for its lead.
        if earlier.index > note.index or len(earlier.clients) < 2:
            continue
        if earlier.criteria and all(criterion.held for criterion in earlier.criteria):
            decisions_of_arm.append(earlier)
    reasons = []
    for earlier in decisions_of_arm[-MAX_GROUNDS:]:
        reasons.append(
            f"Round {earlier.round}, {readable(earlier.note['text']).removesuffix('.')}."
        )
    return reasons


def last_about(notes: Sequence[NoteView], group: Clients) -> NoteView | None:
    """Return the last note about this group alone that left it unchanged.

    Args:
        notes: The notes of the run, oldest first.
        group: The members of the group.

    Returns:
        The note, or None if there is no such note or the group has changed since, except for
        clients that came or left.
    """
    # From the last note back to the last one that changed this group.
    members = set(group)
    for note in reversed(notes):
        if _changed(note, members):
            return None
        clients = set(note.clients)
        # The note is about this group if the common clients are most of both.
        num_common = len(clients & members)
        if _examined(note) and 2 * num_common > max(len(clients), len(members)):
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
    # From the last note back to the last one that changed groups.
    present = history.present
    for note in reversed(notes):
        if _changed(note, present):
            return None
        clients = set(note.clients)
        num_groups = sum(not clients.isdisjoint(group) for group in history.groups)
        if _examined(note) and num_groups > 1:
            return note
    return None


def _changed(note: NoteView, members: set[ClientId]) -> bool:
    """Return whether a note changed groups of any of these clients, apart from the arrival of one client."""
    return note.changes and note.effect != "joins" and bool(members & set(note.clients))


def _examined(note: NoteView) -> bool:
    """Return whether a note is about groups that were examined and stayed, also by an arm that does not serve them."""
    # A note of an arm that does not serve the clients.
    if note.effect == "info":
        return bool(note.criteria)
    return not note.changes and note.effect in ("keeps", "divides", "regroups")


def _standing(history: RunHistory, notes: Sequence[NoteView], group: Clients) -> dict[str, Any]:
    """Return a group with its mean score in the last tested round, and the last decision that left it unchanged."""
    # The score is that of the last test, whenever that was.
    tested_line = last_tested(history.lines)
    note = last_about(notes, group)
    return {
        "clients": list(group),
        "score": tested_line and mean_of(tested_line, group),
        "personal": sorted(personal_clients(history.lines[-1]) & set(group)),
        "decision": note and decision(note),
    }


def unexplained(history: RunHistory, changes: Sequence[NoteView]) -> list[dict[str, Any]]:
    """Return the rounds after which groups had changed without a note that explains it.

    Clients that come or leave do not count as a change.

    Args:
        history: The run.
        changes: The notes that changed groups.
    """
    # Rounds in which a note explains that groups changed. New groups may train a round later.
    explained_rounds: set[int] = set()
    for note in changes:
        explained_rounds.add(note.round)
        if note.effect in ("regroups", "joins"):
            explained_rounds.add(note.round + 1)
    entries = []
    for line_before, line in pairwise(history.lines):
        # Clients that came or left are not compared.
        in_both = clients_of(line_before) & clients_of(line)
        groups_before = _groups_among(in_both, line_before)
        groups = _groups_among(in_both, line)
        if groups != groups_before and line["round"] not in explained_rounds:
            new_groups = sorted(map(list, groups - groups_before))
            entries.append({"round": line["round"], "groups": new_groups})
    return entries


def _groups_among(clients: set[ClientId], line: Line) -> set[Clients]:
    """Return the groups of a round, of these clients only."""
    groups = set()
    for group in line["groups"]:
        members = clients & set(group)
        if members:
            groups.add(tuple(sorted(members)))
    return groups


# ----------------------------------------------------------------------------------------------------
# The history in words.


def text(history: RunHistory, explanation: dict[str, Any]) -> list[Paragraph]:
    """Return the paragraphs of a run's explanation, which follow its screen.

    Args:
        history: The run.
        explanation: What :func:`run_history` returned.
    """
    texts = [" ".join(explanation["verdict"]), explanation["about"]]
    return [
        *[(0, text) for text in texts if text],
        *_best_round_words(history, explanation),
        (0, ""),
        *_left_out_words(explanation),
        *_refused_words(history),
        *privacy_words(explanation),
        *_away_words(history),
        *_change_words(explanation),
        *_presence_words(history),
        *_standing_words(explanation),
    ]


def name_of_run(explanation: dict[str, Any]) -> str:
    """Return the run's method, scenario, seed, round and number of groups.

    Args:
        explanation: The explanation of the run or of a client.
    """
    all_clients = explanation.get("all_clients")
    of_all = "" if all_clients is None else f" among the tested ones of {all_clients:,} clients"
    return (
        f"{explanation['method']} in {explanation['title']}, seed {explanation['seed']}, "
        f"after round {explanation['round']} of {explanation['rounds']}: "
        f"{count(len(explanation['groups']), 'group')}{of_all}."
    )


def title(explanation: dict[str, Any], start: str = "") -> list[Paragraph]:
    """Return the verdict, the name of the run, and how the method decides.

    Args:
        explanation: The explanation of a client.
        start: The beginning of the sentence about the run.
    """
    run = f"{start}{name_of_run(explanation)}"
    texts = [" ".join(explanation["verdict"]), run, explanation["about"]]
    paragraphs = [(0, text) for text in texts if text]
    return [*paragraphs, (0, "")]


def indented(sentences: Iterable[str]) -> list[Paragraph]:
    """Return sentences as paragraphs below the one of a decision."""
    return [(2, sentence) for sentence in sentences]


def _best_round_words(history: RunHistory, explanation: dict[str, Any]) -> list[Paragraph]:
    """The round with the best validation score, and whether the run stopped because of it."""
    best = explanation["best_round"]
    if best is None:
        return []
    sentence = (
        f"Best validation score: {best['metric']} {best['score']:.3f} in round {best['round']}."
    )
    ending = Ending.of(history.description, history.lines)
    if ending.stopped:
        sentence += f" The run stopped in round {explanation['round']}, after {ending.stop_after} rounds without a better one."
    return [(0, sentence)]


def _left_out_words(explanation: dict[str, Any]) -> list[Paragraph]:
    """Who was refused in the last round and is in no group."""
    if not explanation["left_out"]:
        return []
    # The first of them, and how many more there are.
    refusals = list(explanation["left_out"].items())
    paragraphs = [(0, "CLIENTS THAT ARE EXCLUDED")]
    for client, reason in refusals[:MAX_SHOWN]:
        paragraphs.append((1, f"Client {client}: {reason}."))
    num_hidden = len(refusals) - MAX_SHOWN
    if num_hidden > 0:
        clients = count(num_hidden, "further client")
        paragraphs.append((1, f"... and {clients} (--json has all of them)."))
    return [*paragraphs, (0, "")]


def _refused_words(history: RunHistory) -> list[Paragraph]:
    """How many replies were refused, and why."""
    refusals = refused_sentence(history.lines)
    if not refusals:
        return []
    return [(0, "REPLIES THAT WERE REFUSED"), (1, f"{refusals}."), (0, "")]


def privacy_words(explanation: dict[str, Any]) -> list[Paragraph]:
    """What noise protects, and with which ε; the client's own, if its explanation has one."""
    privacy = explanation["privacy"]
    if privacy is None:
        return []
    sentence = f"Differential privacy: {privacy['words']}."
    client = str(explanation.get("client"))
    if client in privacy.get("of_client", {}):
        sentence += f" Of this client, ε is {privacy['of_client'][client]:.3g}."
    return [(0, sentence), (0, "")]


def _away_words(history: RunHistory) -> list[Paragraph]:
    """Who was away, and not asked, in which rounds."""
    rounds_of_client: dict[ClientId, list[int]] = {}
    for line in history.lines:
        for client in map(shown_as(line).key, line.get("absent", ())):
            rounds_of_client.setdefault(client, []).append(line["round"])
    if not rounds_of_client:
        return []
    paragraphs = [(0, "CLIENTS THAT WERE AWAY")]
    for client, missed_rounds in list(rounds_of_client.items())[:MAX_SHOWN]:
        paragraphs.append((1, f"Client {client}: not asked in {rounds(missed_rounds)}."))
    num_hidden = len(rounds_of_client) - MAX_SHOWN
    if num_hidden > 0:
        paragraphs.append((1, f"... and {count(num_hidden, 'further client')}."))
    return [*paragraphs, (0, "")]


def first_and_last(
    items: Sequence[Any],
    max_items: int,
    item_noun: str,
    item_words: Callable[[Any], list[Paragraph]],
) -> list[Paragraph]:
    """Return the paragraphs of the first and the last items, and the number of those between.

    Args:
        items: The items.
        max_items: The greatest number of items, an even one.
        item_noun: What an item is called.
        item_words: Returns the paragraphs of an item.
    """
    # All items, if they are few enough; else the first and the last.
    num_hidden = len(items) - max_items
    num_first = len(items) if num_hidden <= 0 else max_items // 2
    paragraphs: list[Paragraph] = []
    for item in items[:num_first]:
        paragraphs += item_words(item)
    if num_hidden > 0:
        paragraphs.append((1, f"... {count(num_hidden, item_noun)} (--json has all of them) ..."))
        for item in items[-(max_items // 2) :]:
            paragraphs += item_words(item)
    return paragraphs


def _change_words(explanation: dict[str, Any]) -> list[Paragraph]:
    """The decisions that changed groups, changes without a reason, and the number of other notes."""
    decisions = explanation["decisions"]
    unexplained_changes = explanation["unexplained"]
    paragraphs = [(0, "WHAT CHANGED THE GROUPS")]
    if not decisions and not unexplained_changes:
        paragraphs.append((1, "Nothing: the groups are those of the first round."))
    paragraphs += first_and_last(decisions, MAX_SHOWN, "further decision", described)
    for change in unexplained_changes[:MAX_SHOWN]:
        groups = "; ".join(who(group) for group in change["groups"][:MAX_UNEXPLAINED_GROUPS])
        paragraphs.append(
            (
                1,
                f"Round {change['round']}: the groups changed to {groups}, and no reason was recorded.",
            )
        )
    # Kind of a note -> how many of them changed no group.
    notes_of_kind = explanation["unchanged"]
    if notes_of_kind:
        kinds = ", ".join(f"{kind} {number}" for kind, number in sorted(notes_of_kind.items()))
        notes = count(sum(notes_of_kind.values()), "other event")
        paragraphs.append((1, f"{notes} changed no group ({kinds})."))
    return [*paragraphs, (0, ""), *choice_words(explanation["choices"])]


def choice_words(choice_entries: Sequence[dict[str, Any]]) -> list[Paragraph]:
    """Return the paragraphs about arms and personal models; none for a method without them."""
    if not choice_entries:
        return []
    return [
        (0, "WHICH MODELS WERE TRAINED AND USED"),
        *first_and_last(choice_entries, MAX_SHOWN, "further decision", _choice),
        (0, ""),
    ]


def _choice(entry: dict[str, Any]) -> list[Paragraph]:
    """One decision about models: its note, and below it what follows from it."""
    paragraphs = [(1, f"Round {entry['round']}: {readable(entry['text']).removesuffix('.')}.")]
    # The first sentence is the text of the note.
    paragraphs += indented(entry["words"][1:])
    return paragraphs


def described(entry: dict[str, Any]) -> list[Paragraph]:
    """Return one decision: what happened, and below it the reasons."""
    reasons = [*entry["words"], *entry.get("grounds", ())]
    paragraphs = [(1, f"Round {entry['round']}: {happened(entry)}")]
    paragraphs += indented(reasons)
    return paragraphs


def happened(entry: dict[str, Any]) -> str:
    """Return the effect of a decision in one sentence."""
    clients = entry["clients"]
    parts = entry["parts"]
    match entry["effect"]:
        case "merges":
            return f"two groups became one: {who(clients)}."
        case "joins" if entry["joined"]:
            return f"client {clients[0]} joined {who(entry['joined'])}."
        case "joins":
            return f"client {clients[0]} found its group."
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
        case "divides" if entry["was_one_group"]:
            return f"{who(clients)} split into {_parts_in_words(parts)}."
        case _ if len(parts) > 1:
            members = count(len(clients), "client")
            return f"{members} in {len(parts)} groups: {_parts_in_words(parts)}."
        case _:
            return f"{who(clients)}."


def _parts_in_words(parts: Sequence[Sequence[ClientId]]) -> str:
    """Return the parts of a decision, separated by bars."""
    texts = []
    for part in parts[:MAX_PARTS_IN_SENTENCE]:
        texts.append(f"{who(part)} alone" if len(part) == 1 else who(part))
    if len(parts) > MAX_PARTS_IN_SENTENCE:
        texts.append(f"and {len(parts) - MAX_PARTS_IN_SENTENCE} more")
    return " | ".join(texts)


def _presence_words(history: RunHistory) -> list[Paragraph]:
    """The rounds in which clients arrived or left."""
    paragraphs = []
    for line_before, line in pairwise(history.lines):
        # Clients that are in a group after one of two adjacent rounds only.
        arrived = clients_of(line) - clients_of(line_before)
        departed = clients_of(line_before) - clients_of(line)
        events = []
        if arrived:
            events.append(f"{who(arrived)} arrived")
        if departed:
            events.append(f"{who(departed)} left")
        if events:
            paragraphs.append((1, f"Round {line['round']}: {'; '.join(events)}."))
    if not paragraphs:
        return []
    num_hidden = len(paragraphs) - MAX_SHOWN
    if num_hidden > 0:
        paragraphs[MAX_SHOWN:] = [(1, f"... and in {count(num_hidden, 'further round')}.")]
    return [(0, "CLIENTS THAT ARRIVED OR LEFT"), *paragraphs, (0, "")]


def _standing_words(explanation: dict[str, Any]) -> list[Paragraph]:
    """How the present groups agree with the true ones, and the last decisions that left them unchanged."""
    paragraphs = [(0, "WHY THE GROUPS DID NOT CHANGE FURTHER")]
    if explanation["agreement"] is not None:
        equal = "the same as" if explanation["agreement"] == 1 else "not the same as"
        scale = "1 is full agreement, about 0 is chance"
        rand_index = f"adjusted Rand index {explanation['agreement']:.2f}: {scale}"
        paragraphs.append(
            (
                1,
                f"They are {equal} the true groups, which are hidden from all methods ({rand_index}).",
            )
        )
    # The last decision about several groups together.
    decision_of_all = explanation["standing"]["all"]
    if decision_of_all is not None:
        round_of_all = decision_of_all["round"]
        paragraphs.append((1, f"All together, last examined in round {round_of_all}:"))
        paragraphs += indented(decision_of_all["words"])
    # The last decision about each group alone.
    groups = explanation["standing"]["groups"]
    for group in groups[:MAX_SHOWN]:
        clients = who(group["clients"])
        # The sentence starts with the clients.
        name = f"{clients[:1].upper()}{clients[1:]}"
        if group["score"] is not None:
            name = f"{name}, mean {explanation['metric']} {group['score']:.3f}"
        if group["personal"]:
            num_personal = len(group["personal"])
            number_served = "each" if num_personal == len(group["clients"]) else num_personal
            name = f"{name}, {number_served} served by a personal model"
        decision_of_group = group["decision"]
        # A decision about all groups is not repeated.
        if decision_of_group is None or decision_of_group == decision_of_all:
            paragraphs.append((1, f"{name}."))
        else:
            round_of_group = decision_of_group["round"]
            paragraphs.append((1, f"{name}; last examined in round {round_of_group}:"))
            paragraphs += indented(decision_of_group["words"])
    num_hidden = len(groups) - MAX_SHOWN
    if num_hidden > 0:
        further_groups = count(num_hidden, "further group")
        paragraphs.append((1, f"... and {further_groups} (--json has all of them)."))
    return paragraphs
