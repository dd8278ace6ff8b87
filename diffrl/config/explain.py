"""Pydantic's errors in the user's words: the key, the rule, what was given, the way out."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from diffrl.sections import OWN, show
from reward_models.common.messages import LONGEST_NAME, closest, cut

Location = tuple[int | str, ...]

MOST_PROBLEMS = 20
"""How many problems one message lists."""

WRONG_TYPE = {
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "tuple_type": "must be a list",
    "dict_type": "must be a mapping of keys to values",
    "model_type": "must be a section, a mapping of keys to values",
    "model_attributes_type": "must be a section, a mapping of keys to values",
    "finite_number": "must be a finite number",
    "invalid_key": "is not a known key: keys are text",
}
BOUNDS = {
    "greater_than": ("gt", ">"),
    "greater_than_equal": ("ge", ">="),
    "less_than": ("lt", "<"),
    "less_than_equal": ("le", "<="),
}
RENAMED = {
    "objective.noisiest": "objective.noise_range",
    "objective.old_slope": "objective.old_decay_rate",
    "objective.old_limit": "objective.old_decay_max",
}
"""Keys of earlier versions, and what they are called now; docs/configuration.md lists them."""
TAKEN_FROM = {
    "lr": "learning_rate",
    "num_inference_steps": "steps",
    "cfg": "guidance_scale",
    "max_steps": "iterations",
    "num_generations": "roots",
    "group_size": "roots",
    "gradient_clip": "max_grad_norm",
    "lr_scheduler_type": "schedule",
    **dict.fromkeys(("clearml", "comet_ml", "mlflow", "report_to", "swanlab"), "others"),
}
"""What other trainers call a key; docs/glossary.md has more."""
NOT_HERE = {
    ("rollout.dynamics", "ode"): "A deterministic step has no density, so grpo cannot train it",
}


def explain(errors: Sequence[ErrorDetails], root: type[BaseModel]) -> list[str]:
    """Say each problem in a sentence or more, in the order of the errors.

    Args:
        errors: `ValidationError.errors()`.
        root: the model that was validated; its keys are what "did you mean" chooses from.
    """
    sentences: list[str] = []
    for error in errors[:MOST_PROBLEMS]:
        sentences += _explain_one(error, root)
    if len(errors) > MOST_PROBLEMS:
        sentences.append(f"There are {len(errors) - MOST_PROBLEMS:,} further problems. Mend these first.")
    return list(dict.fromkeys(sentences))


def _explain_one(error: ErrorDetails, root: type[BaseModel]) -> list[str]:
    kind, received, context = error["type"], error["input"], error.get("ctx", {})
    path = dotted(error["loc"], root)
    if kind == "problems":
        return list(context["problems"])
    if kind == "rule":
        return [f"{path} {context['rule']}"]
    if kind == "extra_forbidden":
        return [_unknown_key(error["loc"], root)]
    if kind == "missing":
        return [f"{path} is missing. {_meaning(error['loc'], root)}"]
    if kind == "literal_error":
        return [_not_a_choice(path, received, _choices(_field_type(error["loc"], root)))]
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        kinds = [_kind_of(model) for model in _models_in(_field_type(error["loc"], root))]
        if kind == "union_tag_not_found" and not isinstance(received, (Mapping, BaseModel)):
            return [f"{path} {WRONG_TYPE['model_type']}. Got {show(received)}.{_form(error['loc'], received, root)}"]
        if kind == "union_tag_not_found":
            return [f"{path}.kind is missing: it must be one of {', '.join(kinds)}. Got {show(received)}."]
        return [
            _not_a_choice(
                f"{path}.kind", received["kind"], kinds, NOT_HERE.get((path, show(received["kind"]).strip('"')))
            )
        ]
    if kind == "too_short":
        if len(received) >= context["min_length"]:  # entries that are wrong themselves have their own problem
            return []
        return [f"{path} must have at least {context['min_length']} entry. Got {show(received)}. Add one."]
    if kind == "string_too_short":
        return [f"{path} must not be empty. Got {show(received)}."]
    if kind == "string_too_long":
        return [f"{path} must have at most {context['max_length']:,} characters. Got {len(received):,}. Shorten it."]
    if kind == "too_long":
        return [f"{path} must have at most {context['max_length']:,} entries. Got {len(received):,}. Remove some."]
    if kind in BOUNDS:
        name, sign = BOUNDS[kind]
        return [f"{path} must be {sign} {show(context[name])}. Got {show(received)}."]
    if kind in WRONG_TYPE:
        forms = ("tuple_type", "model_type", "model_attributes_type")
        form = _form(error["loc"], received, root, kind == "tuple_type") if kind in forms else ""
        return [f"{path} {WRONG_TYPE[kind]}. Got {show(received)}.{_quotes(kind, received)}{form}"]
    return [f"{path}: {error['msg']}. Got {show(received)}."]


def _would_be(kind: str, text: str) -> bool:
    """Return whether a text without its quotes would be of the type that is wanted."""
    if kind == "bool_type":
        return text.lower() in ("true", "false")
    try:
        float(text)
    except ValueError:
        return False
    return True


def _quotes(kind: str, received: Any) -> str:
    if kind in ("int_type", "float_type", "bool_type") and isinstance(received, str) and _would_be(kind, received):
        return " Remove the quotes."
    if kind == "string_type" and isinstance(received, (bool, int, float)):
        return " Put it in quotes."
    return ""


def _form(location: Location, received: Any, root: type[BaseModel], listed: bool = False) -> str:
    """Return how to write a list or a section where one value was given: with it in the place that it was meant for."""
    if not isinstance(received, str | int | float) or len(str(received)) > LONGEST_NAME:
        return ""
    models, value = _models_at(location, root, choose=False), str("..." if isinstance(received, bool) else received)
    if models:
        fields = models[0].model_fields
        first = next((name for name, field in fields.items() if field.is_required()), next(iter(fields)))
        value = f"{{{first}: {value}}}"
    return f" Write [{value}]." if listed or not models else f" Write {value}."


def _not_a_choice(path: str, received: Any, choices: Sequence[Any], reason: str | None = None) -> str:
    shown = ", ".join(str(choice) if isinstance(choice, str) else show(choice) for choice in choices)
    if len(choices) == 1:
        return f"{path} must be {shown}, the only one in this version. Got {show(received)}. Set it to {shown}."
    close = closest(received, [str(choice) for choice in choices])
    guess = f" Did you mean {close!r}?" if close else ""
    return f"{path} must be one of {shown}. Got {show(received)}.{f' {reason}.' if reason else guess}"


def _unknown_key(location: Location, root: type[BaseModel]) -> str:
    *parents, key = location
    model = next(iter(_models_at(tuple(parents), root)), root)
    path = dotted(location, root)
    if path in RENAMED:
        return f"{path} is not a known key any more: it is {RENAMED[path]}. Write that."
    namesakes = [".".join(keys) for keys in _places(root) if keys[-1] == TAKEN_FROM.get(str(key), key)]
    close = None if namesakes else closest(key, model.model_fields)
    if close:
        return f"{path} is not a known key. Did you mean {close!r}?"
    known = ", ".join(model.model_fields)
    if parents and parents[-1] == _kind_of(model):  # one of several kinds of section
        section, rest = path.rpartition(".")[0], ", ..." if len(model.model_fields) > 1 else ""
        return (
            f"{path} is not a key of kind {_kind_of(model)}. Its keys: {known}. Remove "
            f"{cut(str(key), LONGEST_NAME)}, or give the section as a whole: "
            f"{section}={{kind: {_kind_of(model)}{rest}}}."
        )
    hint = f"Did you mean {' or '.join(namesakes)}?" if namesakes else f"Known keys: {known}."
    return f"{path} is not a known key. {hint}"


def dotted(location: Location, root: type[BaseModel]) -> str:
    """Return the path as the user writes it: pydantic's location without the kinds it inserts for unions."""
    parts: list[str] = []
    for index, part in enumerate(location):
        models = _models_at(location[:index], root, choose=False)
        if len(models) < 2 or part not in {_kind_of(model) for model in models}:
            parts.append(cut(str(part), LONGEST_NAME))
    return ".".join(parts)


def _models_at(location: Location, root: type[BaseModel], choose: bool = True) -> list[type[BaseModel]]:
    """Return the models that the section at this location may be; pydantic's inserted kind chooses one of several."""
    models = [root]
    for part in location:
        if len(models) > 1:
            chosen = [model for model in models if _kind_of(model) == part]
            if chosen:
                models = chosen
                continue
        if isinstance(part, int):
            continue
        field = next((model.model_fields[part] for model in models if part in model.model_fields), None)
        if field is None:
            return []
        models = _models_in(field.annotation)
    return models[:1] if choose else models


def _field_type(location: Location, root: type[BaseModel]) -> Any:
    """Return the annotation of the field that the location ends in, list indices apart."""
    names = [part for part in location if not isinstance(part, int)]
    owner = next(iter(_models_at(tuple(names[:-1]), root)))
    return owner.model_fields[str(names[-1])].annotation


def _meaning(location: Location, root: type[BaseModel]) -> str:
    """Return what to write for a missing key."""
    *parents, key = location
    owner = next(iter(_models_at(tuple(parents), root)), None)
    field = owner.model_fields.get(str(key)) if owner else None
    if field is None:
        return "Add it."
    if field.description:
        return f"Add it: {field.description}"
    fields = [item for model in _models_in(field.annotation) for item in model.model_fields.items()]
    needed = [name for name, inner in fields if inner.is_required()]
    return f"Add the section; it needs {', '.join(needed)}." if needed else "Add it."


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    """Return every section type within an annotation, in order."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if get_origin(annotation) in (Annotated, Union, types.UnionType, tuple, list):
        return [model for argument in get_args(annotation) for model in _models_in(argument)]
    return []


def _choices(annotation: Any) -> list[Any]:
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    return [choice for argument in get_args(annotation) for choice in _choices(argument)]


def _kind_of(model: type[BaseModel]) -> str:
    kind = model.model_fields.get("kind")
    return str(next(iter(_choices(kind.annotation)), OWN)) if kind else ""


def _places(model: type[BaseModel], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the path of every key of the configuration."""
    for name, field in model.model_fields.items():
        yield (*above, name)
        for inner in _models_in(field.annotation):
            yield from _places(inner, (*above, name))
