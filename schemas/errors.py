"""The one error of this package: bytes or values that are not a message we know."""


class SchemaError(ValueError):
    """Bytes that do not decode, or values that do not fit, a message of this project.

    `schema` names the message as far as it could be read, for the quarantine.
    """

    def __init__(self, reason: str, schema: str = "unknown") -> None:
        super().__init__(reason)
        self.reason = reason
        self.schema = schema
