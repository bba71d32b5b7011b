"""Who looks at a page, and who attacks it, as another process than the node; for bench/page.py.

Each line of stdin names what to do as well from now on: `view N`, `attack`; `nothing` ends all.
"""

import asyncio
import sys

HALF_OPEN = 1_000
REQUESTS_PER_S = 50  # of each wrong kind: what one browser tab of a hostile site sends


async def main(host: str, port: int, token: str) -> None:
    """Obey stdin until it ends."""
    loop = asyncio.get_running_loop()
    doing: list[asyncio.Task[None]] = []
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        word, *rest = line.split()
        if word == "view":
            doing.append(loop.create_task(views(host, port, token, int(rest[0]))))
        elif word == "attack":
            doing.append(loop.create_task(attack(host, port)))
        else:
            for each in doing:
                each.cancel()
            await asyncio.gather(*doing, return_exceptions=True)
            doing.clear()
        print("done", flush=True)


async def views(host: str, port: int, token: str, count: int) -> None:
    async with asyncio.TaskGroup() as tasks:
        for _ in range(count):
            tasks.create_task(view(host, port, token))


async def view(host: str, port: int, token: str) -> None:
    while True:
        reader, writer = await asyncio.open_connection(host, port)
        try:
            writer.write(
                f"GET /stream HTTP/1.1\r\nHost: {host}:{port}\r\n"
                f"Authorization: Bearer {token}\r\n\r\n".encode()
            )
            while await reader.read(1 << 16):
                pass
        finally:
            writer.close()


async def attack(host: str, port: int) -> None:
    """Half-open connections, foreign hosts, other methods, and no token."""
    writers = []
    try:
        for _ in range(HALF_OPEN):
            _, writer = await asyncio.open_connection(host, port)
            writer.write(b"GET /stream HTTP/1.1\r\nHost: loc")
            writers.append(writer)
        while True:
            for text in (
                "GET /view HTTP/1.1\r\nHost: evil.example\r\n\r\n",
                f"GET /view HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n",
                f"DELETE / HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n",
            ):
                reader, writer = await asyncio.open_connection(host, port)
                writer.write(text.encode())
                answer = await reader.read(1 << 16)
                assert answer.split()[1] in (b"421", b"401", b"405"), answer
                writer.close()
            await asyncio.sleep(1 / REQUESTS_PER_S)
    finally:
        for writer in writers:
            writer.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
