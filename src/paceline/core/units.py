"""Numbers as people read them."""


def count(number: int) -> str:
    """Return 12345 as "12,345"."""
    return f"{number:,}"


def plural(number: int, noun: str) -> str:
    """Return "1 epoch" or "5 epochs"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def percent(fraction: float) -> str:
    """Return 0.9417 as "94.17%"."""
    return f"{100 * fraction:.2f}%"


def number(value: float) -> str:
    """Return a setting without needless digits: 0.1, 0.0005, 3e-05."""
    return f"{value:.6g}"


def rate(per_second: float) -> str:
    """Return images per second with three digits that matter, or whole numbers above a hundred."""
    return f"{per_second:,.0f}" if per_second >= 100 else f"{per_second:.3g}"


def duration(seconds: float) -> str:
    """Return "0.42s", "12.3s", "4m 05s" or "3h 07m"."""
    if seconds < 9.995:
        return f"{seconds:.2f}s"
    if seconds < 59.95:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m {rest:02d}s"
    return f"{minutes // 60}h {minutes % 60:02d}m"


def large(number: float) -> str:
    """Return a large number with three digits that matter: "81.2 M", "8.18 G"."""
    for unit in ("", " k", " M", " G"):
        if number < 999.5:
            return f"{number:.3g}{unit}"
        number /= 1000
    return f"{number:.3g} T"


def size(num_bytes: float) -> str:
    """Return bytes in decimal units, as disks and links are sold."""
    for unit in ("B", "kB", "MB", "GB"):
        if num_bytes < 999.5:
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.3g} TB"
