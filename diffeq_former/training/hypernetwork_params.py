"""The banks among the parameters: weights/UNIT/bank, most of a hypernetwork."""


def split(tree: dict) -> tuple[dict, dict]:
    """What is like the parameters, without banks; and the banks, by unit."""
    units = tree.get("weights", {})
    banks = {name: unit["bank"] for name, unit in units.items() if "bank" in unit}
    rest = {
        name: {key: x for key, x in unit.items() if key != "bank"}
        for name, unit in units.items()
    }
    return tree | ({"weights": rest} if units else {}), banks


def join(rest: dict, banks: dict) -> dict:
    """What `split` took apart."""
    units = {
        name: unit | ({"bank": banks[name]} if name in banks else {})
        for name, unit in rest.get("weights", {}).items()
    }
    return rest | ({"weights": units} if units else {})


def tree_of(name: str, bank) -> dict:
    """Parameters that are this bank alone."""
    return {"weights": {name: {"bank": bank}}}


def bank_of(name: str, tree: dict):
    """The bank in it."""
    return tree["weights"][name]["bank"]
