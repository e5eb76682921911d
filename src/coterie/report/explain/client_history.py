"""The history of one client in a run, in words: at each decision about it, the group it came to and the reason."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from coterie.methods.tuned import EXPECTED_GAIN, USES_PERSONAL
from coterie.records.shown import ClientId, Line, personal_clients, shown_as
from coterie.report.contest import Contest
from coterie.report.explain import run_history
from coterie.report.explain.decision import decision, member
from coterie.report.explain.run_history import Paragraph
from coterie.report.explain.view import Clients, NoteView, RunHistory, of_client
from coterie.report.gathered import follow
from coterie.report.limits import limited_clients
from coterie.report.summary import absent, silent
from coterie.report.trials import MethodTrials
from coterie.report.verdict import for_client
from coterie.report.words import count, rounds, short, who

MAX_STEPS_SHOWN = 10
"""The number of steps shown in full, half of them the first and half the last; and the number of
groups shown."""

MAX_REFUSALS_SHOWN = 3
"""The number of refused replies shown, the first ones."""


def client_history(history: RunHistory, asked: ClientId) -> dict[str, Any]:
    """Return the history of one client; notes/explain.md has the fields.

    Args:
        history: The run.
        asked: The client, by its name, or by its number if clients have no names.

    Raises:
        UserError: If the client is not present.
    """
    client, group = of_client(history, asked)
    notes = list(history.views())
    # 1. How the client fares, compared with other methods.
    contest, run_in_contest = run_history.rivals(history)
    verdict = for_client(contest, run_in_contest, client)
    if verdict:
        verdict = f"{verdict}{_over_seeds(history, contest, run_in_contest, client)}"
    # 2. The decisions about the client, and those that left it where it is.
    steps, num_unchanged = _steps(notes, client)
    step_entries = []
    for note in steps:
        grounds = run_history.grounds(note, notes)
        step_entries.append({**_step(history, note, client), "grounds": grounds})
    standing = _standing_notes(history, notes, client, group, steps)
    standing_entries = [_step(history, note, client) for note in standing]
    silent_rounds = [line["round"] for line in history.lines if silent(line, client)]
    absent_rounds = [line["round"] for line in history.lines if absent(line, client)]
    # 3. Decisions about models, and replies that were refused.
    choices = [note for note in run_history.choices(notes) if client in note.clients]
    refusals = {}
    for line in history.lines:
        reason = line["refused"].get(str(client))
        if reason:
            refusals[line["round"]] = reason
    return {
        **run_history.heading(history),
        "verdict": [verdict] if verdict else [],
        "groups": list(map(list, history.groups)),
        "client": client,
        "group": list(group),
        "truth": _truth(history, group, client),
        "adversary": client in history.adversaries,
        "score": _score(reversed(history.lines), client),
        "path": _path(history, client),
        "steps": step_entries,
        "choices": list(map(decision, choices)),
        "personal": _personal(choices, client),
        "personal_now": client in personal_clients(history.lines[-1]),
        "unchanged": num_unchanged,
        "standing": standing_entries,
        "silent": silent_rounds,
        "absent": absent_rounds,
        "limited": limited_clients(run_in_contest.first.limits, client),
        "refused": refusals,
        "privacy": run_in_contest.first.summary["privacy"],
    }


def _over_seeds(
    history: RunHistory, contest: Contest, run_in_contest: MethodTrials, client: ClientId
) -> str:
    """What the other seeds of the folder say, or how to find it out, where this seed alone does not tell; else empty."""
    rivals = [method for method in contest.methods if method is not run_in_contest]
    gains = [contest.client_gain(run_in_contest, rival, client) for rival in rivals]
    if all(gain is None or gain.sign is not None for gain in gains):
        return ""
    over_seeds = run_history.rivals_over_seeds(history)
    if over_seeds is None:
        return " Runs with three seeds or more in one folder (--seeds 3) would tell."
    contest_of_seeds, method = over_seeds
    if contest_of_seeds.repeats_tests:
        return " The other seeds in this folder have the same test rows, so they do not tell."
    sentence = for_client(contest_of_seeds, method, client)
    return f" In the mean over the {len(contest_of_seeds.seeds)} seeds in this folder: {sentence}"


def _steps(notes: Sequence[NoteView], client: ClientId) -> tuple[list[NoteView], int]:
    """Return the notes that led to a client's present group, and the number of notes that changed only other groups."""
    steps = []
    num_unchanged = 0
    # The client's present place: where the last of these notes put it.
    place: Any = None
    for note in notes:
        if client not in note.clients:
            continue
        if note.effect in ("arrives", "waits", "joins", "moves", "merges", "leaves"):
            steps.append(note)
        # Other decisions count only if they placed the client anew.
        elif note.parts and note.changes:
            new_place = _place(note, client, place)
            if new_place == place:
                num_unchanged += 1
            else:
                steps.append(note)
            place = new_place
    return steps, num_unchanged


def _place(note: NoteView, client: ClientId, place_before: Any) -> Any:
    """Return where a note placed a client: the model that it took, if notes name it, or the clients that it is with.

    A client that did not take a model keeps its place ``place_before``.
    """
    model_of_client = note.values("model")
    if model_of_client:
        return model_of_client.get(client, place_before)
    return next((frozenset(part) for part in note.parts if client in part), None)


def _standing_notes(
    history: RunHistory,
    notes: Sequence[NoteView],
    client: ClientId,
    group: Clients,
    steps: Sequence[NoteView],
) -> list[NoteView]:
    """Return the last notes that left a client's group unchanged: about it alone, and about several groups."""
    standing: list[NoteView] = []
    # A note that is one of the client's steps is not repeated.
    for note in (run_history.last_about(notes, group), run_history.last_of_all(history, notes)):
        if note is None or client not in note.clients:
            continue
        if note not in steps and note not in standing:
            standing.append(note)
    return standing


def _personal(choices: Sequence[NoteView], client: ClientId) -> dict[str, Any] | None:
    """Return the client's expected difference of held-out losses, and whether it uses its personal model.

    It is None for a method without personal models.
    """
    # The last note with such values says which model serves; the client may be missing in it.
    for note in reversed(choices):
        differences = note.values(EXPECTED_GAIN)
        if not differences:
            continue
        difference = differences.get(client)
        if difference is None:
            return None
        # Runs recorded before notes said who uses its model did so wherever it was better.
        uses_personal = note.values(USES_PERSONAL).get(client, float(difference < 0))
        return {"expected": difference, "serves": bool(uses_personal)}
    return None


def _step(history: RunHistory, note: NoteView, client: ClientId) -> dict[str, Any]:
    """Return a decision about a client, with the client's scores before and after it."""
    # The first round whose models the decision may have changed.
    first_index_after = note.index
    # New groups of an epoch train in the next round.
    if note.effect == "regroups":
        first_index_after += 1
    return {
        **decision(note),
        "client": member(note, client),
        "score_before": _score(reversed(history.lines[: note.index]), client),
        "score_after": _score(history.lines[first_index_after:], client),
    }


def _score(lines: Iterable[Line], client: ClientId) -> dict[str, Any] | None:
    """Return the client's first value of the main metric in ``lines``, its round, and whether it is of its personal model."""
    for line in lines:
        if not line["tested"]:
            continue
        metric = shown_as(line).main
        value = line["clients"].get(str(client), {}).get(metric)
        if value is not None:
            return {
                "round": line["round"],
                "metric": metric,
                "value": value,
                "personal": client in personal_clients(line),
            }
    return None


def _path(history: RunHistory, client: ClientId) -> list[dict[str, Any]]:
    """Return the groups that the client was in, their first and last rounds, and its last score with each model."""
    _, node_ids_by_round = follow(history.lines)
    # A stay is the rounds that the client spent in one group without a break.
    stays: list[list[Line]] = []
    last_node = None
    for line, nodes in zip(history.lines, node_ids_by_round, strict=True):
        for node, group in zip(nodes, line["groups"], strict=True):
            if client in group:
                if node != last_node:
                    stays.append([])
                stays[-1].append(line)
                last_node = node
    path = []
    for lines in stays:
        last_group = next(group for group in lines[-1]["groups"] if client in group)
        path.append(
            {
                "clients": list(last_group),
                "first": lines[0]["round"],
                "last": lines[-1]["round"],
                "score": _score(reversed(lines), client),
            }
        )
    return path


def _truth(history: RunHistory, group: Clients, client: ClientId) -> dict[str, Any] | None:
    """Return the client's true group, the members of its group that are not in it, and those of it that are missing.

    It is None if the true group is not known.
    """
    true_group = next((members for members in history.truth or () if client in members), None)
    if true_group is None:
        return None
    return {
        "group": list(true_group),
        "with": sorted(set(group) - set(true_group)),
        "without": sorted(set(true_group) - set(group)),
    }


# ----------------------------------------------------------------------------------------------------
# The history in words.


def text(explanation: dict[str, Any]) -> list[Paragraph]:
    """Return the paragraphs of a client's explanation.

    Args:
        explanation: What :func:`client_history` returned.
    """
    return [
        *run_history.title(explanation, f"Client {explanation['client']}. "),
        *_group_words(explanation),
        *_step_words(explanation),
        *_path_words(explanation),
        *_standing_words(explanation),
        (0, ""),
        *run_history.choice_words(_choices_with_personal(explanation)),
        *_absence_words(explanation),
        *run_history.privacy_words(explanation),
    ]


def _group_words(explanation: dict[str, Any]) -> list[Paragraph]:
    """Whom the client is with, and whether this is its true group."""
    client = explanation["client"]
    companions = [member for member in explanation["group"] if member != client]
    paragraphs = [
        (0, f"It is with {who(companions)}." if companions else "It is alone in its group.")
    ]
    # True groups are known in simulations only.
    truth = explanation["truth"]
    if truth is not None:
        mistakes = []
        if truth["with"]:
            mistakes.append(f"it is with {who(truth['with'])}")
        if truth["without"]:
            mistakes.append(f"it lacks {who(truth['without'])}")
        agreement = "This is its true group."
        if mistakes:
            agreement = f"This is not its true group: {'; '.join(mistakes)}."
        hidden = "(The true groups come with the data and are hidden from all methods.)"
        paragraphs.append((0, f"{agreement} {hidden}"))
    if explanation["personal_now"]:
        paragraphs.append((0, "It is served by its personal model, not by that of its group."))
    if explanation["adversary"]:
        paragraphs.append(
            (0, "It simulates an adversary. (This is recorded, and hidden from all methods.)")
        )
    return [*paragraphs, (0, "")]


def _step_words(explanation: dict[str, Any]) -> list[Paragraph]:
    """The decisions that led to the client's group."""
    paragraphs = [(0, "DECISIONS ABOUT IT")]
    if not explanation["steps"]:
        paragraphs.append((1, "None: it has been in this group since the first round."))
    paragraphs += run_history.first_and_last(
        explanation["steps"],
        MAX_STEPS_SHOWN,
        "further step",
        lambda step: _described(step, explanation),
    )
    if explanation["unchanged"]:
        decisions = count(explanation["unchanged"], "other decision")
        paragraphs.append((1, f"{decisions} changed groups without moving it."))
    return [*paragraphs, (0, "")]


def _described(step: dict[str, Any], explanation: dict[str, Any]) -> list[Paragraph]:
    """One decision: what happened, the reasons, and the client's scores before it, after it and now."""
    paragraphs = [(1, f"Round {step['round']}: {run_history.happened(step)}")]
    # Reasons that several sources state are listed once.
    reasons = dict.fromkeys([*step["client"]["words"], *step["words"], *step["grounds"]])
    paragraphs += run_history.indented(reasons)
    scores = {
        "before": step["score_before"],
        "after": step["score_after"],
        "now": explanation["score"],
    }
    scores_in_words = []
    for time, score in scores.items():
        if score is not None:
            kind = ", personal model" if score["personal"] else ""
            scores_in_words.append(f"{score['value']:.3f} {time} (round {score['round']}{kind})")
    if scores_in_words:
        paragraphs.append((2, f"Its {explanation['metric']}: {', '.join(scores_in_words)}."))
    return paragraphs


def _path_words(explanation: dict[str, Any]) -> list[Paragraph]:
    """The last groups that the client was in, with its score in each."""
    path = explanation["path"]
    metric = explanation["metric"].upper()
    paragraphs = [(0, f"ITS GROUPS, AND ITS {metric} IN EACH")]
    num_hidden = len(path) - MAX_STEPS_SHOWN
    if num_hidden > 0:
        paragraphs.append((1, f"... {count(num_hidden, 'earlier group')} ..."))
    # The last groups are shown, with their rounds.
    for stay in path[-MAX_STEPS_SHOWN:]:
        span = f"Rounds {stay['first']}-{stay['last']}"
        if stay["first"] == stay["last"]:
            span = f"Round {stay['first']}"
        score = stay["score"]
        tested = "not tested"
        if score:
            kind = " with its personal model" if score["personal"] else ""
            tested = f"{score['metric']} {score['value']:.3f}{kind} in round {score['round']}"
        paragraphs.append((1, f"{span}: {who(stay['clients'])}; {tested}."))
    return paragraphs


def _standing_words(explanation: dict[str, Any]) -> list[Paragraph]:
    """The last decisions that left the client's group unchanged."""
    if not explanation["standing"]:
        return []
    paragraphs = [(0, ""), (0, "WHY IT STAYED")]
    for step in explanation["standing"]:
        paragraphs.append((1, f"Round {step['round']}, the last time that its group was examined:"))
        reasons = dict.fromkeys([*step["words"], *step["client"]["words"]])
        paragraphs += run_history.indented(reasons)
    return paragraphs


def _choices_with_personal(explanation: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the decisions about arms and personal models; the last one has what it says of the client."""
    choices = list(explanation["choices"])
    personal = explanation["personal"]
    if personal is None:
        return choices
    # What the last decision about personal models means for this client.
    choice = "It does not use its personal model"
    if personal["serves"]:
        choice = "It uses its personal model"
    difference = personal["expected"]
    side = "lower" if difference < 0 else "higher"
    expected = (
        f"{choice}: its held-out loss is expected to be {side} by {short(abs(difference))} "
        "than that of the model from the server."
    )
    last = choices[-1]
    choices[-1] = {**last, "words": [*last["words"], expected]}
    return choices


def _absence_words(explanation: dict[str, Any]) -> list[Paragraph]:
    """The rounds in which the client did not answer or was away, was limited, or was refused."""
    paragraphs = []
    silent_rounds = explanation["silent"]
    absent_rounds = explanation["absent"]
    if silent_rounds and absent_rounds:
        missed_rounds = sorted({*silent_rounds, *absent_rounds})
        paragraphs.append(
            (
                0,
                f"It missed {rounds(missed_rounds)}: it did not answer in {rounds(silent_rounds)}, "
                f"and was away in {rounds(absent_rounds)}.",
            )
        )
    elif silent_rounds:
        paragraphs.append((0, f"It did not answer in {rounds(silent_rounds)}."))
    elif absent_rounds:
        paragraphs.append((0, f"It was away, and was not asked, in {rounds(absent_rounds)}."))
    paragraphs += [(0, sentence) for sentence in explanation["limited"]]
    refusals = list(explanation["refused"].items())
    for round, reason in refusals[:MAX_REFUSALS_SHOWN]:
        paragraphs.append((0, f"Its reply of round {round} was refused: {reason}."))
    num_hidden = len(refusals) - MAX_REFUSALS_SHOWN
    if num_hidden > 0:
        paragraphs.append((0, f"... and in {count(num_hidden, 'further round')}."))
    return paragraphs or [(0, "It answered every request.")]
