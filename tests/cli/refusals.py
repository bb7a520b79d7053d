"""How a refusal looks."""

import re


def is_refusal(result: tuple[int, str, str]) -> bool:
    code, out, err = result
    return (
        code == 2 and out == "" and re.fullmatch(r"nearlm: \S[^\n]*\n", err) is not None and "please report" not in err
    )
