"""Tests of ``einmal.inspection``."""
