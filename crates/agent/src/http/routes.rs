//! The routes with the right that each needs (R24).
//!
//! Guarantees
//! - No route exists without a right: [`Routes`] is the only way to add one.
//! - A caller whose right is unknown, or less than a route needs, is refused before anything else
//!   happens.
//! - A request that changes something is in the audit log, or nothing is changed; see
//!   [`super::audit`].

use super::{Refused, audit};
use crate::access::{Caller, Peer};
use crate::agent::Agent;
use axum::Router;
use axum::extract::{ConnectInfo, Request, State as AppState};
use axum::http::Method;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::MethodRouter;
use mainstay_types::{Access, Code, Problem};
use std::sync::Arc;

/// Description of a route.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Route {
    pub method: Method,
    pub path: &'static str,
    pub access: Access,
    /// The route changes something, so each request is in the audit log.
    pub changes: bool,
}

/// The routes so far.
#[derive(Default)]
pub struct Routes {
    router: Router<Arc<Agent>>,
    pub table: Vec<Route>,
}

impl Routes {
    /// Adds a question. `handler` answers GET.
    pub fn ask(self, access: Access, path: &'static str, handler: MethodRouter<Arc<Agent>>) -> Self {
        self.add(Route { method: Method::GET, path, access, changes: false }, handler)
    }

    /// Adds a question that needs a body. `handler` answers POST.
    pub fn ask_with(self, access: Access, path: &'static str, handler: MethodRouter<Arc<Agent>>) -> Self {
        self.add(Route { method: Method::POST, path, access, changes: false }, handler)
    }

    /// Adds a change. `handler` answers `method`.
    pub fn change(
        self,
        access: Access,
        method: Method,
        path: &'static str,
        handler: MethodRouter<Arc<Agent>>,
    ) -> Self {
        self.add(Route { method, path, access, changes: true }, handler)
    }

    fn add(mut self, route: Route, handler: MethodRouter<Arc<Agent>>) -> Self {
        self.table.push(route.clone());
        let guarded = handler.route_layer(middleware::from_fn_with_state(route.clone(), guard));
        self.router = self.router.route(route.path, guarded);
        self
    }

    pub fn into_router(self) -> Router<Arc<Agent>> {
        self.router
    }
}

/// Finds out who asks, for [`guard`].
pub async fn identify(AppState(agent): AppState<Arc<Agent>>, mut request: Request, next: Next) -> Response {
    let peer = request.extensions().get::<ConnectInfo<Peer>>().map(|peer| peer.0);
    let asked = agent.clone();
    // A caller without a name or a right is refused by each route.
    if let Some(peer) = peer
        && let Ok(caller) = tokio::task::spawn_blocking(move || asked.callers.caller(&peer)).await
    {
        request.extensions_mut().insert(caller);
    }
    request.extensions_mut().insert(agent);
    next.run(request).await
}

/// Lets a request through if its caller may make it.
async fn guard(AppState(route): AppState<Route>, request: Request, next: Next) -> Response {
    let caller = request.extensions().get::<Caller>().cloned();
    let Some(agent) = request.extensions().get::<Arc<Agent>>().cloned() else {
        let message = "a request has come by a way on which nobody looks who asks";
        let problem = Problem::new(Code::AgentInternal, message, "Report this with the agent's log.");
        return Refused::from(problem).into_response();
    };
    match allowed(caller, &route, &agent.callers.groups.remedy()) {
        Err(refusal) => {
            tracing::warn!(method = %route.method, path = route.path, why = refusal.message, "a request is refused");
            Refused::from(refusal).into_response()
        }
        Ok(by) if route.changes => audit::recorded(agent, by, request, next).await,
        Ok(_) => next.run(request).await,
    }
}

/// The caller with its right.
fn allowed(caller: Option<Caller>, route: &Route, remedy: &str) -> Result<(Caller, Access), Problem> {
    let Some(caller) = caller else {
        let message = "the agent cannot find out who asks, so nothing is answered";
        return Err(Problem::new(Code::Forbidden, message, remedy));
    };
    // The name of a token says that it is one.
    let kind = if caller.from.is_some() { "" } else { "user " };
    let who = format!("the {kind}{}", caller.who);
    let message = match caller.access {
        Some(access) if access >= route.access => return Ok((caller, access)),
        Some(access) => format!(
            "{who} has the right `{access}`, and {} {} needs `{}`",
            route.method, route.path, route.access
        ),
        None => format!("{who} has no right to use Mainstay on this node"),
    };
    if caller.from.is_some() {
        let remedy =
            format!("Use a token with the right `{}`. `mainstay token list` shows them.", route.access);
        return Err(Problem::new(Code::Forbidden, message, remedy));
    }
    Err(Problem::new(Code::Forbidden, message, remedy))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(access: Option<Access>) -> Caller {
        Caller { who: "bob".into(), login: None, from: None, access }
    }

    #[test]
    fn a_route_is_open_to_its_right_and_greater_ones_alone() {
        for needed in Access::ALL {
            let route = Route { method: Method::GET, path: "/v1/x", access: needed, changes: false };
            assert!(allowed(None, &route, "").is_err());
            assert!(allowed(Some(caller(None)), &route, "").is_err());
            for has in Access::ALL {
                let result = allowed(Some(caller(Some(has))), &route, "");
                assert_eq!(result.is_ok(), has >= needed, "{has} for {needed}");
            }
        }
    }

    #[test]
    fn a_refusal_names_user_right_and_remedy() {
        let route = Route { method: Method::PUT, path: "/v1/x", access: Access::Admin, changes: true };
        let refusal = allowed(Some(caller(Some(Access::Read))), &route, "Ask root.").unwrap_err();
        assert_eq!(refusal.message, "the user bob has the right `read`, and PUT /v1/x needs `admin`");
        assert_eq!((refusal.code, refusal.remedy.as_str()), (Code::Forbidden, "Ask root."));
        let who = "token ci".to_owned();
        let by_token = Caller { who, from: Some("10.0.0.9".into()), ..caller(Some(Access::Operate)) };
        let refusal = allowed(Some(by_token), &route, "Ask root.").unwrap_err();
        assert_eq!(refusal.message, "the token ci has the right `operate`, and PUT /v1/x needs `admin`");
        assert!(refusal.remedy.starts_with("Use a token with the right `admin`."), "{refusal}");
    }
}
