"""Calls to a router over HTTP, for UPnP. They need aiohttp, which a first node may lack.

Errors:  OSError, TimeoutError and ValueError where a router gives no answer.
"""

import aiohttp
from yarl import URL

from p2pswarm.reach.nat.mapping_search import CallRouter
from p2pswarm.reach.nat.upnp import XML_BYTES_MAX

CALL_S = 2.0  # a router is a millisecond away; cheap ones think for a second
CHUNK_BYTES = 8192


def session() -> aiohttp.ClientSession:
    """HTTP as one speaks it with a stranger: no cookies, proxies or compressed bodies."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=2, force_close=True),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=CALL_S),
        headers={"Accept-Encoding": "identity"},
        auto_decompress=False,
        trust_env=False,
    )


async def fetched(http: aiohttp.ClientSession, call: CallRouter) -> tuple[int, bytes | None]:
    """Status and body of the answer; no body if it is too long."""
    try:
        async with http.request(
            "GET" if call.body is None else "POST",
            URL(call.url, encoded=True),
            headers=call.headers,
            data=call.body,
            allow_redirects=False,
        ) as response:
            body = bytearray()
            async for chunk in response.content.iter_chunked(CHUNK_BYTES):
                body += chunk
                if len(body) > XML_BYTES_MAX:
                    return response.status, None
            return response.status, bytes(body)
    except aiohttp.ClientError as error:
        raise OSError(str(error)) from error
