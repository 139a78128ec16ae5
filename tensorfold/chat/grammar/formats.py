"""The formats of strings that can be enforced, as patterns of the whole string.

Dates and times follow RFC 3339, addresses RFC 5321 without quoting and RFC 4291, names of hosts
RFC 1123, and URIs RFC 3986.
"""

_LEAP = "(([0-9]{2}(0[48]|[2468][048]|[13579][26]))|([02468][048]|[13579][26])00)-02-29"
_DATE = (
    "([0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)"
    f"|02-(0[1-9]|1[0-9]|2[0-8]))|{_LEAP})"
)
_TIME = (
    "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
)
_BYTE = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = f"{_BYTE}(\\.{_BYTE}){{3}}"
_GROUP = "[0-9A-Fa-f]{1,4}"
_LABEL = "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_ATOM = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
_UNRESERVED = "[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2}"
_TAIL = f"(\\?({_UNRESERVED}|[/?])*)?(#({_UNRESERVED}|[/?])*)?"
_AUTHORITY = (
    "//([A-Za-z0-9._~!$&'()*+,;=:-]|%[0-9A-Fa-f]{2})*"
    "(@([A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*)?(:[0-9]{0,5})?"
)


def _ipv6() -> str:
    ways = [f"({_GROUP}:){{7}}{_GROUP}"]
    for before in range(8):
        head = f"{_GROUP}(:{_GROUP}){{{before - 1}}}" if before else ""
        after = 7 - before
        tail = f"({_GROUP}(:{_GROUP}){{0,{after - 1}}})?" if after else ""
        ways.append(f"{head}::{tail}")
    return "|".join(f"({way})" for way in ways)


FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}[Tt]{_TIME}",
    "duration": (
        "P([0-9]+W|([0-9]+Y([0-9]+M([0-9]+D)?)?|[0-9]+M([0-9]+D)?|[0-9]+D)"
        "(T([0-9]+H([0-9]+M([0-9]+S)?)?|[0-9]+M([0-9]+S)?|[0-9]+S))?"
        "|T([0-9]+H([0-9]+M([0-9]+S)?)?|[0-9]+M([0-9]+S)?|[0-9]+S))"
    ),
    "email": f"{_ATOM}(\\.{_ATOM})*@{_LABEL}(\\.{_LABEL})+",
    "hostname": f"{_LABEL}(\\.{_LABEL})*",
    "ipv4": _IPV4,
    "ipv6": _ipv6(),
    "uuid": "[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}",
    "uri": f"[A-Za-z][A-Za-z0-9+.-]*:({_AUTHORITY})?({_UNRESERVED}|/)*{_TAIL}",
    "json-pointer": "(/([^~/]|~[01])*)*",
}
