"""Commands of the owner of a run: invite, list, revoke, renew."""
