"""Measurements of a served model, alone and beside other engines. Not installed."""
