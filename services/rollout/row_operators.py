"""The operators of the task pipeline by name, with the arguments that each takes."""

FIELDS = "fields"
"""Where an operator takes `fields` and none are given, they are the pipeline's `target_fields`."""

ROW_OPERATORS: dict[str, tuple[str, ...]] = {
    "deduplicate": (FIELDS,),
    "field_filter": ("field", "one_of", "least", "most", "pattern", "keep"),
    "length_filter": (FIELDS, "least", "most"),
    "not_empty": (FIELDS,),
}
