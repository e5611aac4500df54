"""Settings chosen by Optuna: its sampler, its pruner and its storage; the runs are made like those of any sweep."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from vcl.errors import VclError
from vcl.files import writing
from vcl.runs.config import RunConfig
from vcl.runs.plans import Candidate, Plan, Search, Settings, judged, recipe_of
from vcl.runs.status import RunStatus
from vcl.runs.sweep import Outcome, Prune, Pruned

Attempt = Callable[[Sequence[RunConfig], Prune], list[Outcome]]
"""Makes runs, and stops those of which the second argument says so."""
PLANNED = ("benchmark", "method", "recipe", "seeds", "first_seed", "threads", "settings")
"""Entries of a plan that its search must keep, beside its stream, space and sampler."""


def search(plan: Plan, root: Path, at_once: int, attempt: Attempt) -> list[Candidate]:
    """Try as many settings as the plan has trials, so many of them at once; an interrupted search continues.

    A trial that was under way is found in the storage, and its runs in the store.
    """
    optuna = imported()
    wanted = plan.search or Search(0, {})
    study = open_study(plan, wanted, root)
    while True:
        trials = study.get_trials(deepcopy=False)
        running = [under_way(study, t, wanted.space) for t in trials if t.state == optuna.trial.TrialState.RUNNING]
        ended = sum(trial.state.is_finished() for trial in trials)
        missing = min(at_once, wanted.trials - ended) - len(running)
        batch = running + [ask(study, wanted.space) for _ in range(max(0, missing))]
        if not batch:
            break
        try_out(plan, study, batch[:at_once], attempt)
    return [told(trial) for trial in study.get_trials(deepcopy=False)]


def try_out(plan: Plan, study: Any, batch: Sequence[Any], attempt: Attempt) -> None:
    """Make the runs of some trials, and tell the study what they came to."""
    configs: list[RunConfig] = []
    owners: list[Any] = []
    for trial in batch:
        try:
            own = plan.configs(settings_of(trial))
        except VclError as error:
            tell(study, trial, Candidate({}, (), str(error)))
            continue
        configs += own
        owners += [trial] * len(own)
    outcomes = attempt(configs, pruning(study, owners)) if configs else []
    for trial in {owner.number: owner for owner in owners}.values():
        ended = [outcome for outcome, owner in zip(outcomes, owners, strict=True) if owner is trial]
        pruned = any(isinstance(outcome, Pruned) for outcome in ended)
        tell(study, trial, judged(settings_of(trial), ended), pruned=pruned)


def tell(study: Any, trial: Any, found: Candidate, *, pruned: bool = False) -> None:
    """Tell the study what a trial came to; it keeps a mean, so that the seeds and the reason are kept beside it."""
    optuna = imported()
    live = optuna.trial.Trial(study, trial._trial_id)
    if found.accuracy is not None:
        live.set_user_attr("accuracies", list(found.accuracies))
        study.tell(trial.number, found.accuracy)
    elif pruned:
        study.tell(trial.number, state=optuna.trial.TrialState.PRUNED)
    else:
        live.set_user_attr("note", found.note)
        study.tell(trial.number, state=optuna.trial.TrialState.FAIL)


def pruning(study: Any, owners: Sequence[Any]) -> Prune:
    """Whether the pruner gives up a trial, asked after each task of its first seed; all its runs end with it."""
    optuna = imported()
    first = {trial.number: number for number, trial in reversed(list(enumerate(owners)))}
    reported: dict[int, int] = {}
    given_up: set[int] = set()

    def prune(number: int, status: RunStatus) -> bool:
        trial = owners[number]
        if number == first[trial.number] and status.accuracies and status.scored > reported.get(number, 0):
            reported[number] = status.scored
            # `trial` may come from the journal of an earlier search: it cannot report, and what it has, it reported.
            live = optuna.trial.Trial(study, trial._trial_id)
            if status.scored not in trial.intermediate_values:
                live.report(sum(status.accuracies) / len(status.accuracies), status.scored)
            if live.should_prune():
                given_up.add(trial.number)
        return trial.number in given_up

    return prune


def ask(study: Any, space: dict[str, dict[str, Any]]) -> Any:
    """A new trial with settings from the space, as the storage has it."""
    return with_settings(study, study.ask(), space)


def under_way(study: Any, trial: Any, space: dict[str, dict[str, Any]]) -> Any:
    """A trial of the storage; one that was interrupted before it had settings gets them now."""
    if "settings" in trial.user_attrs:
        return trial
    return with_settings(study, imported().trial.Trial(study, trial._trial_id), space)


def with_settings(study: Any, trial: Any, space: dict[str, dict[str, Any]]) -> Any:
    """The trial as the storage has it, once each setting of the space is suggested; what was, stays."""
    for name, values in space.items():
        if "choices" in values:
            # The storage takes plain values only: lists are numbered.
            trial.suggest_categorical(name, list(range(len(values["choices"]))))
            continue
        whole = all(type(values[end]) is int for end in ("low", "high"))
        options = {key: value for key, value in values.items() if key in ("log", "step")}
        (trial.suggest_int if whole else trial.suggest_float)(name, values["low"], values["high"], **options)
    chosen = {
        name: space[name]["choices"][value] if "choices" in space[name] else value
        for name, value in trial.params.items()
    }
    trial.set_user_attr("settings", chosen)
    return study.get_trials(deepcopy=False)[trial.number]


def settings_of(trial: Any) -> Settings:
    return dict(trial.user_attrs["settings"])


def told(trial: Any) -> Candidate:
    """A trial of the storage as a candidate; those of earlier versions have a mean and a state only."""
    settings, state = dict(trial.user_attrs.get("settings", {})), trial.state.name
    if state == "COMPLETE":
        return Candidate(settings, tuple(trial.user_attrs.get("accuracies", [trial.value])))
    return Candidate(settings, (), trial.user_attrs.get("note", state) if state == "FAIL" else state)


def open_study(plan: Plan, wanted: Search, root: Path) -> Any:
    """The study of a plan, in a journal beside the runs; whatever is in it stays."""
    optuna = imported()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    samplers = {"tpe": optuna.samplers.TPESampler, "random": optuna.samplers.RandomSampler}
    pruners = {
        "none": optuna.pruners.NopPruner,
        "median": optuna.pruners.MedianPruner,
        "hyperband": optuna.pruners.HyperbandPruner,
    }
    journal = root / f"{plan.name}.optuna.journal"
    with writing(root):
        root.mkdir(parents=True, exist_ok=True)
        backend = optuna.storages.journal.JournalFileBackend(str(journal))
    try:
        study = optuna.create_study(
            storage=optuna.storages.JournalStorage(backend),
            study_name=plan.name,
            direction="maximize",
            pruner=pruners[wanted.pruner](),
            load_if_exists=True,
        )
    except (ValueError, KeyError, TypeError) as error:
        raise VclError(
            f"{journal} cannot be read by Optuna ({type(error).__name__}: {error}). Restore it, or move it away to "
            "begin the search anew; complete runs are not made again."
        ) from None
    check_same(plan, wanted, study, journal)
    # A study that continues must not draw again what it drew at its start.
    made = len(study.get_trials(deepcopy=False))
    study.sampler = samplers[wanted.sampler](seed=wanted.seed + made)
    if wanted.recipe_first and not made:
        study.enqueue_trial(stored(recipe_of(plan), wanted.space))
    return study


def check_same(plan: Plan, wanted: Search, study: Any, journal: Path) -> None:
    """Refuse a study that was begun with another plan; one of an earlier version, which does not say, takes this."""
    asked = {name: getattr(plan, name) for name in PLANNED}
    asked |= {"stream": plan.stream.as_json(), "space": wanted.space, "sampler": wanted.sampler}
    # As text, since the storage has lists for tuples.
    texts = {name: json.dumps(value, sort_keys=True, default=str) for name, value in asked.items()}
    begun = study.user_attrs.get("plan")
    if begun is None and all(same_choices(trial, wanted.space) for trial in study.get_trials(deepcopy=False)):
        study.set_user_attr("plan", texts)
    elif begun != texts:
        changed = ", ".join(name for name in texts if begun and begun.get(name) != texts[name]) or "space"
        raise VclError(
            f"The file of the sweep {plan.name!r} has changed since its search began ({changed}), so that the "
            f"trials so far are of another search. Give the file another name, or remove {journal} to begin anew; "
            "complete runs are not made again."
        )


def same_choices(trial: Any, space: dict[str, dict[str, Any]]) -> bool:
    """Whether a trial chose among as many choices as the space has."""
    before = {name: len(getattr(values, "choices", ())) for name, values in trial.distributions.items()}
    return all(before[name] == len(values.get("choices", ())) for name, values in space.items() if name in before)


def stored(settings: Settings, space: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Settings as the storage has them, choices by their numbers.

    >>> stored({"epochs": 3, "hidden": [8]}, {"epochs": {"low": 1, "high": 5}, "hidden": {"choices": [[4], [8]]}})
    {'epochs': 3, 'hidden': 1}
    """
    values = {}
    for name, value in settings.items():
        choices = space[name].get("choices")
        if choices is not None and value in choices:
            values[name] = choices.index(value)
        elif choices is None and value is not None and space[name]["low"] <= value <= space[name]["high"]:
            values[name] = value
        else:
            raise VclError(
                f"recipe_first: the recipe has {name} = {value!r}, which [search.space] does not include. Widen it, "
                "or leave recipe_first out."
            )
    return values


def imported() -> Any:
    try:
        import optuna
    except ImportError:
        raise VclError("A [search] needs Optuna: pip install 'vcl[tune]'.") from None
    return optuna
