"""What of pandas is used here."""

from typing import Any

DataFrame: Any
