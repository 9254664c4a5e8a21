"""Every environment that Gymnasium knows by an id: env=gymnasium env.id=LunarLander-v3 (https://gymnasium.farama.org)."""

from warprun.simulation.external.registered import Registered

environment = Registered()
