"""Facts about the other members of a gang: their statuses, which of them can reach one another, and the rendezvous."""
