"""Draft sources: they propose tokens and never decide one."""
