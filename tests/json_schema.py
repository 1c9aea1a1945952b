"""The part of JSON Schema that our schemas use; a word that it does not know is an error."""

KINDS = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "null": type(None),
    "integer": int,
    "number": (int, float),
}
ABOUT = {"$schema", "$id", "title"}


def differences(value, schema, place="it"):
    """What of `value` is not as `schema` says, in words; nothing if all is."""
    for word, said in schema.items():
        if word not in ABOUT:
            yield from RULES[word](value, said, schema, place)


def _type(value, kind, schema, place):
    is_number = kind in ("integer", "number") and not isinstance(value, bool)
    right = isinstance(value, KINDS[kind]) and (is_number or kind not in ("integer", "number"))
    if not right:
        yield f"{place} is {value!r:.60}, no {kind}"


def _properties(value, known, schema, place):
    for name in known.keys() & value.keys() if isinstance(value, dict) else ():
        yield from differences(value[name], known[name], f"{place}.{name}")


def _required(value, names, schema, place):
    for name in names if isinstance(value, dict) else ():
        if name not in value:
            yield f"{place} has no {name}"


def _others(value, said, schema, place):
    others = value.keys() - schema.get("properties", {}).keys() if isinstance(value, dict) else ()
    for name in others:
        if said is False:
            yield f"{place} has {name}, which the schema does not know"
        elif said is not True:
            yield from differences(value[name], said, f"{place}.{name}")


def _items(value, said, schema, place):
    for i, each in enumerate(value if isinstance(value, list) else ()):
        yield from differences(each, said, f"{place}.{i}")


def _any_of(value, branches, schema, place):
    found = [list(differences(value, one, place)) for one in branches]
    if all(found):
        yield min(found, key=len)[0]


def _bound(fails, words):
    def check(value, bound, schema, place):
        if isinstance(value, int | float) and fails(value, bound):
            yield f"{place} is {value}; it must be {words} {bound}"

    return check


def _length(fails, words):
    def check(value, bound, schema, place):
        if isinstance(value, list) and fails(len(value), bound):
            yield f"{place} has {len(value)} entries; it must have {words} {bound}"

    return check


def _one_of(value, allowed, schema, place):
    if value not in allowed:
        yield f"{place} is {value!r}, none of {allowed}"


RULES = {
    "type": _type,
    "properties": _properties,
    "required": _required,
    "additionalProperties": _others,
    "items": _items,
    "anyOf": _any_of,
    "enum": _one_of,
    "const": lambda value, said, schema, place: _one_of(value, [said], schema, place),
    "exclusiveMinimum": _bound(lambda value, bound: value <= bound, "above"),
    "exclusiveMaximum": _bound(lambda value, bound: value >= bound, "below"),
    "minItems": _length(lambda count, bound: count < bound, "at least"),
    "maxItems": _length(lambda count, bound: count > bound, "at most"),
}
