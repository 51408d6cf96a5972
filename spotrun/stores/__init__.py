"""Stores, one module for each kind of address. `spotrun.store.open_store` chooses; nobody else imports them."""
