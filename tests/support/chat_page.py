"""Actions of a user on the chat page."""

from playwright.sync_api import expect


def send(page, words):
    page.wait_for_selector("#model option", state="attached")  # before that, a message stays in its field
    page.get_by_label("Message", exact=True).fill(words)
    page.keyboard.press("Enter")


def ask(page, words):
    """Send a message, and wait for the complete answer."""
    send(page, words)
    return finished(page)


def finished(page):
    """The last answer, once it is complete."""
    expect(last(page).get_by_role("button", name="Regenerate")).to_be_visible()
    return last(page)


def last(page, column=-1):
    return page.locator(".exchange").last.locator(".answer").nth(column)


def answer_text(page):
    return last(page).locator(".content").inner_text()


def press(page, name):
    page.get_by_role("button", name=name, exact=True).last.click()


def titles(page):
    return page.locator("#chat-list .title")


def setting(page, name):
    if page.locator("#settings").is_hidden():
        press(page, "Settings")
    return page.get_by_label(name, exact=True)


def captured_request(page, action):
    """The body of the request that an action sends."""
    with page.expect_request("**/v1/chat/completions") as request:
        action()
    return request.value.post_data_json
