"""Bridges to other frameworks; nothing else imports this package."""
